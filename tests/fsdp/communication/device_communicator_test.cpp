// The host's side of collectives that are queued on a device, over a backend between threads: which rank is sent which
// slice, sums in rank order, and a peer that never comes.
#include "fsdp/communication/device_communicator.h"

#include <gmock/gmock.h>

#include <future>
#include <thread>

#include "tests/fsdp/communication/thread_backend.h"

namespace ghostshard::fsdp {
namespace {

using tests::Mailboxes;
using tests::ThreadBackend;

struct Rank {
  c10::intrusive_ptr<ThreadBackend> backend;
  std::shared_ptr<CollectiveWatch> watch;
  std::unique_ptr<Communicator> communicator;
};

void run(int64_t size, const std::function<void(Rank&)>& body) {
  const auto mail = std::make_shared<Mailboxes>();
  std::vector<std::future<void>> ranks;
  for (int64_t r = 0; r < size; ++r) {
    ranks.push_back(std::async(std::launch::async, [&, r] {
      Rank rank{.backend = c10::make_intrusive<ThreadBackend>(mail, static_cast<int>(r), static_cast<int>(size)),
                .watch = std::make_shared<CollectiveWatch>(std::chrono::milliseconds(300)),
                .communicator = nullptr};
      rank.communicator = make_device_communicator(
          {.backend = rank.backend, .name = "reduce", .device = at::kCPU, .watch = rank.watch});
      body(rank);
    }));
  }
  for (auto& rank : ranks) rank.get();
}

class DeviceCommunicatorOf : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(, DeviceCommunicatorOf, testing::Values(2, 3, 8),
                         [](const auto& test) { return std::to_string(test.param) + "_ranks"; });

TEST_P(DeviceCommunicatorOf, SumsInRankOrderBitForBit) {
  const int64_t size = GetParam();
  // Magnitudes that round otherwise in another order; 7 elements, which no number of ranks here divides.
  const auto of_rank = [&](int64_t rank) {
    return at::arange(1, 8, at::kFloat).mul(rank % 2 == 0 ? 1.1e7 : 1.3e-1).add(static_cast<double>(rank));
  };
  at::Tensor expected = of_rank(0).clone();
  at::Tensor largest = of_rank(0);
  for (int64_t r = 1; r < size; ++r) {
    expected.add_(of_rank(r));
    largest = at::maximum(largest, of_rank(r));
  }
  run(size, [&](Rank& rank) {
    const at::Tensor sum = of_rank(rank.communicator->rank()).clone();
    rank.communicator->all_reduce_sum(sum);
    EXPECT_TRUE(at::equal(sum, expected));
    const at::Tensor most = of_rank(rank.communicator->rank()).clone();
    rank.communicator->all_reduce_max(most);
    EXPECT_TRUE(at::equal(most, largest));
  });
}

TEST_P(DeviceCommunicatorOf, ExchangesInOneGroupAndLeavesTheOwnSliceAlone) {
  const int64_t size = GetParam();
  run(size, [&](Rank& rank) {
    const int64_t own = rank.communicator->rank();
    rank.backend->calls.clear();
    const at::Tensor in = at::arange(2 * size, at::kFloat).add(100.0 * static_cast<double>(own));
    const at::Tensor out = at::full({2 * size}, -1.0F);
    const int64_t before = rank.communicator->bytes_sent();
    rank.communicator->exchange(out, in)->wait();
    EXPECT_EQ(rank.communicator->bytes_sent() - before, (size - 1) * 8);
    for (int64_t r = 0; r < size; ++r) {
      const float first = r == own ? -1.0F : static_cast<float>(100 * r + 2 * own);
      EXPECT_EQ(out[2 * r].item<float>(), first);
    }
    EXPECT_EQ(rank.backend->calls.size(), static_cast<size_t>(2 * (size - 1) + 2));
    EXPECT_EQ(rank.backend->calls.front(), "start");
    EXPECT_EQ(rank.backend->calls.back(), "end");
  });
}

// Two collectives in flight at once; both keep their tensors until they are waited for.
TEST(DeviceCommunicator, KeepsTensorsOfWorkInFlight) {
  run(2, [](Rank& rank) {
    const int64_t own = rank.communicator->rank();
    at::Tensor out = at::zeros({4}), into = at::zeros({4});
    auto gathered = rank.communicator->all_gather(out, at::full({2}, static_cast<double>(own + 1), at::kFloat));
    auto exchanged = rank.communicator->exchange(into, at::full({4}, static_cast<double>(own + 5), at::kFloat));
    exchanged->wait();
    gathered->wait();
    EXPECT_EQ(out.sum().item<float>(), 6);
    EXPECT_EQ(into[own == 0 ? 2 : 0].item<float>(), own == 0 ? 6 : 5);
  });
}

TEST(DeviceCommunicator, RefusesTensorsOfAnotherDeviceTypeOrSize) {
  run(2, [](Rank& rank) {
    Communicator& c = *rank.communicator;
    EXPECT_THROW(c.all_gather(at::zeros({4}), at::zeros({3})), std::invalid_argument);
    EXPECT_THROW(c.exchange(at::zeros({3}), at::zeros({3})), std::invalid_argument);
    EXPECT_THROW(c.all_reduce_sum(at::zeros({3}, at::kHalf)), std::invalid_argument);
    EXPECT_THROW(c.broadcast(at::zeros({3}), 2), std::invalid_argument);
    EXPECT_THROW(c.all_reduce_sum(at::zeros({3}, at::device(at::kMeta))), std::invalid_argument);
  });
}

TEST(CollectiveWatch, SaysWhichCollectiveNobodyCameTo) {
  run(2, [](Rank& rank) {
    if (rank.communicator->rank() == 1) return;  // leaves
    std::promise<std::string> said;
    auto sentence = said.get_future();
    rank.watch->start([&](const std::string& text) { said.set_value(text); });
    const auto lost = rank.communicator->all_gather(at::zeros({4}), at::zeros({2}));
    ASSERT_EQ(sentence.wait_for(std::chrono::seconds(10)), std::future_status::ready);
    EXPECT_THAT(sentence.get(), testing::AllOf(testing::HasSubstr("all_gather on communicator 'reduce', rank 0 of 2"),
                                               testing::HasSubstr("not complete after")));
  });
}

TEST(CollectiveWatch, PassesAFailureOnAndForgetsWhatIsComplete) {
  CollectiveWatch watch(std::chrono::seconds(60));
  std::promise<std::string> said;
  watch.add("first", [] { return true; });
  watch.add("second", [] { return false; });
  watch.add("third", []() -> bool { throw std::runtime_error("connection lost"); });
  EXPECT_EQ(watch.open(), 2) << "the next add() removes complete ones";
  auto sentence = said.get_future();
  watch.start([&](const std::string& text) { said.set_value(text); });
  ASSERT_EQ(sentence.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_EQ(sentence.get(), "third: connection lost");
  EXPECT_EQ(watch.open(), 1);
  EXPECT_THROW(watch.start([](const std::string&) {}), std::logic_error);
}

}  // namespace
}  // namespace ghostshard::fsdp
