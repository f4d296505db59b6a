#include "fsdp/mesh.h"

#include <gtest/gtest.h>

#include <csignal>

#include "tests/support/ranks.h"

namespace ghostshard::fsdp {
namespace {
using tests::run_ranks;

struct CollectiveCase {
  std::string name;
  int64_t ranks;
  int64_t elements;  // per slice
};

class Collectives : public testing::TestWithParam<CollectiveCase> {};

INSTANTIATE_TEST_SUITE_P(
    , Collectives,
    testing::Values(CollectiveCase{"one_rank", 1, 7}, CollectiveCase{"two_ranks_one_element", 2, 1},
                    CollectiveCase{"two_ranks_nothing", 2, 0}, CollectiveCase{"two_ranks_odd", 2, 100003},
                    CollectiveCase{"three_ranks_odd", 3, 4097}, CollectiveCase{"four_ranks_odd", 4, 1001}),
    [](const auto& test) { return test.param.name; });

at::Tensor values_of(int64_t rank, int64_t count) {
  return at::arange(count, at::kFloat) + 1000000.0 * static_cast<double>(rank);
}

TEST_P(Collectives, all_gather_concatenates_in_rank_order) {
  const auto [name, ranks, n] = GetParam();
  run_ranks(ranks, [&, n = n](Mesh& mesh) {
    const int64_t w = mesh.world_size();
    at::Tensor out = at::full({w * n}, -1.0F);
    mesh.gather().all_gather(out, values_of(mesh.rank(), n))->wait();
    for (int64_t r = 0; r < w; ++r) EXPECT_TRUE(at::equal(out.narrow(0, r * n, n), values_of(r, n)));
    EXPECT_EQ(mesh.gather().bytes_sent(), 4 * n * (w - 1));
  });
}

TEST_P(Collectives, all_gather_in_place) {
  const auto [name, ranks, n] = GetParam();
  run_ranks(ranks, [&, n = n](Mesh& mesh) {
    const int64_t w = mesh.world_size();
    at::Tensor out = at::full({w * n}, -1.0F);
    at::Tensor own = out.narrow(0, mesh.rank() * n, n);
    own.copy_(values_of(mesh.rank(), n));
    mesh.gather().all_gather(out, own)->wait();
    for (int64_t r = 0; r < w; ++r) EXPECT_TRUE(at::equal(out.narrow(0, r * n, n), values_of(r, n)));
  });
}

TEST_P(Collectives, all_to_all_sends_slice_r_to_rank_r) {
  const auto [name, ranks, n] = GetParam();
  run_ranks(ranks, [&, n = n](Mesh& mesh) {
    const int64_t w = mesh.world_size();
    at::Tensor out = at::full({w * n}, -1, at::kLong);
    const at::Tensor in = at::arange(w * n, at::kLong) + 1000000 * mesh.rank();
    mesh.reduce().all_to_all(out, in)->wait();
    for (int64_t r = 0; r < w; ++r) {
      const at::Tensor expected = at::arange(n, at::kLong) + mesh.rank() * n + 1000000 * r;
      EXPECT_TRUE(at::equal(out.narrow(0, r * n, n), expected));
    }
  });
}

TEST_P(Collectives, exchange_leaves_the_own_slice_alone) {
  const auto [name, ranks, n] = GetParam();
  run_ranks(ranks, [&, n = n](Mesh& mesh) {
    const int64_t w = mesh.world_size();
    at::Tensor out = at::full({w * n}, -1, at::kLong);
    mesh.reduce().exchange(out, at::arange(w * n, at::kLong))->wait();
    for (int64_t r = 0; r < w; ++r) {
      const at::Tensor slice = out.narrow(0, r * n, n);
      if (r == mesh.rank()) {
        EXPECT_TRUE(slice.eq(-1).all().item<bool>());
      } else {
        EXPECT_TRUE(at::equal(slice, at::arange(n, at::kLong) + mesh.rank() * n));
      }
    }
  });
}

TEST_P(Collectives, sums_and_maxima_and_broadcasts) {
  const auto [name, ranks, n] = GetParam();
  if (n == 0) return;
  run_ranks(ranks, [&, n = n](Mesh& mesh) {
    const int64_t w = mesh.world_size();
    at::Tensor sum = at::full({n}, static_cast<double>(mesh.rank() + 1));
    mesh.control().all_reduce_sum(sum);
    EXPECT_TRUE(sum.eq(static_cast<double>(w * (w + 1) / 2)).all().item<bool>());
    at::Tensor most = at::full({n}, 10 * mesh.rank(), at::kLong);
    mesh.control().all_reduce_max(most);
    EXPECT_TRUE(most.eq(10 * (w - 1)).all().item<bool>());
    at::Tensor sent = at::full({n}, mesh.rank(), at::kLong);
    mesh.control().broadcast(sent, w - 1);
    EXPECT_TRUE(sent.eq(w - 1).all().item<bool>());
    mesh.control().barrier();
  });
}

TEST(Mesh, all_reduce_sums_in_rank_order_to_the_same_bits_everywhere) {
  run_ranks(4, [](Mesh& mesh) {
    const int64_t n = 1003;
    const auto of_rank = [&](int64_t r) {
      return (at::arange(n, at::kFloat) * 0.7F).sin() * std::pow(10.0F, static_cast<float>(4 - 3 * r));
    };
    at::Tensor sum = of_rank(mesh.rank());
    mesh.control().all_reduce_sum(sum);
    at::Tensor expected = of_rank(0);
    for (int64_t r = 1; r < mesh.world_size(); ++r) expected += of_rank(r);
    EXPECT_TRUE(at::equal(sum, expected));
  });
}

TEST(Mesh, several_collectives_in_flight_do_not_mix) {
  run_ranks(3, [](Mesh& mesh) {
    const int64_t n = 5003, w = mesh.world_size();
    std::vector<at::Tensor> out;
    std::vector<std::unique_ptr<PendingCollective>> pending;
    for (int64_t i = 0; i < 4; ++i) {
      out.push_back(at::zeros({w * n}));
      pending.push_back(mesh.gather().all_gather(out.back(), values_of(10 * i + mesh.rank(), n)));
    }
    for (auto it = pending.rbegin(); it != pending.rend(); ++it) (*it)->wait();
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t r = 0; r < w; ++r) {
        EXPECT_TRUE(at::equal(out[static_cast<size_t>(i)].narrow(0, r * n, n), values_of(10 * i + r, n)));
      }
    }
  });
}

TEST(Mesh, a_lost_peer_ends_the_others_with_the_name_of_call_and_communicator) {
  const auto start = std::chrono::steady_clock::now();
  run_ranks(3, [](Mesh& mesh) {
    if (mesh.rank() == 1) return;  // its mesh closes
    at::Tensor out = at::zeros({3000});
    try {
      mesh.gather().all_gather(out, at::ones({1000}))->wait();
      mesh.gather().all_gather(out, at::ones({1000}))->wait();
      ADD_FAILURE() << "the gather ended although a rank is gone";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("all_gather on communicator 'gather'"), std::string::npos)
          << error.what();
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
}

TEST(Mesh, a_silent_peer_is_a_time_out) {
  run_ranks(2,
            [](Mesh& mesh) {
              if (mesh.rank() == 1) {
                std::this_thread::sleep_for(std::chrono::seconds(4));
                return;
              }
              at::Tensor out = at::zeros({8});
              try {
                mesh.reduce().all_to_all(out, at::ones({8}))->wait();
                ADD_FAILURE() << "the exchange ended although the other rank never came";
              } catch (const std::runtime_error& error) {
                const std::string what = error.what();
                EXPECT_NE(what.find("communicator 'reduce'"), std::string::npos) << what;
                EXPECT_NE(what.find("imed out"), std::string::npos) << what;
              }
            },
            {.collective_timeout = std::chrono::seconds(2)});
}

TEST(Mesh, the_first_failure_reaches_every_other_rank) {
  std::mutex mutex;
  std::vector<std::string> heard;
  run_ranks(3, [&](Mesh& mesh) {
    std::condition_variable arrived;
    bool done = false;
    mesh.watch_failures([&](const std::string& message) {
      const std::lock_guard<std::mutex> lock(mutex);
      heard.push_back(std::to_string(mesh.rank()) + " heard " + message);
      done = true;
      arrived.notify_all();
    });
    mesh.control().barrier();
    if (mesh.rank() == 1) {
      mesh.announce_failure("out of patience");
      mesh.announce_failure("a second message");
    } else {
      std::unique_lock<std::mutex> lock(mutex);
      arrived.wait_for(lock, std::chrono::seconds(10), [&] { return done; });
    }
    mesh.control().barrier();
  });
  std::sort(heard.begin(), heard.end());
  EXPECT_EQ(heard, (std::vector<std::string>{"0 heard rank 1: out of patience", "2 heard rank 1: out of patience"}));
}

TEST(Mesh, run_ranks_names_the_rank_that_threw) {
  try {
    run_ranks(3, [](Mesh& mesh) {
      if (mesh.rank() == 2) throw std::runtime_error("broken");
      mesh.control().barrier();
    });
    FAIL() << "nothing was rethrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "rank 2: broken");
  }
}

// The signal's default would end the whole program, now and then, where a rank is gone.
TEST(Mesh, a_socket_that_the_other_end_closed_is_an_error_and_no_signal) {
  auto* const before = std::signal(SIGPIPE, SIG_DFL);
  run_ranks(2, [](Mesh& mesh) { mesh.control().barrier(); });
  auto* const after = std::signal(SIGPIPE, before);
  EXPECT_EQ(after, SIG_IGN);
}

TEST(Mesh, a_handler_of_the_programs_own_stays) {
  auto* const own = +[](int) {};
  auto* const before = std::signal(SIGPIPE, own);
  run_ranks(2, [](Mesh& mesh) { mesh.control().barrier(); });
  EXPECT_EQ(std::signal(SIGPIPE, before), own);
}

TEST(Mesh, ranks_that_never_come_are_a_time_out) {
  const tests::LocalStore store;
  EXPECT_THROW(Mesh::connect("127.0.0.1", store.port(), 0, 2, false, std::chrono::seconds(1)), std::runtime_error);
}

// Sets the variables that torchrun sets, for the length of one test.
class Environment {
 public:
  explicit Environment(std::vector<std::pair<std::string, std::string>> variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : variables_) unsetenv(name.c_str());
  }

 private:
  std::vector<std::pair<std::string, std::string>> variables_;
};

TEST(Mesh, no_environment_is_one_rank) {
  const auto mesh = Mesh::from_environment(std::chrono::seconds(1));
  EXPECT_EQ(mesh->world_size(), 1);
  EXPECT_EQ(mesh->shape().shard, 1);
}

TEST(Mesh, torchruns_environment_joins_the_agents_store) {
  const tests::LocalStore store;
  const Environment common({{"WORLD_SIZE", "2"},
                            {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", std::to_string(store.port())},
                            {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                            {"TORCHELASTIC_RESTART_COUNT", "0"},
                            {"RANK", "0"}});
  std::thread other([&] {
    const auto mesh = Mesh::connect("127.0.0.1", store.port(), 1, 2, false, std::chrono::seconds(20));
    mesh->control().barrier();
  });
  const auto mesh = Mesh::from_environment(std::chrono::seconds(20));
  EXPECT_EQ(mesh->world_size(), 2);
  mesh->control().barrier();
  other.join();
}

struct BadEnvironment {
  std::string name;
  std::vector<std::pair<std::string, std::string>> variables;
  std::string named;  // the variable that the message must name
};

class WrongEnvironment : public testing::TestWithParam<BadEnvironment> {};

INSTANTIATE_TEST_SUITE_P(
    , WrongEnvironment,
    testing::Values(
        BadEnvironment{"no_world_size", {{"RANK", "0"}}, "WORLD_SIZE"},
        BadEnvironment{"no_rank", {{"WORLD_SIZE", "2"}}, "RANK"},
        BadEnvironment{"rank_too_high", {{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK"},
        BadEnvironment{"rank_no_number", {{"RANK", "1x"}, {"WORLD_SIZE", "2"}}, "RANK"},
        BadEnvironment{"no_ranks", {{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE"},
        BadEnvironment{"no_port", {{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_PORT"},
        BadEnvironment{"port_too_high", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "65536"}}, "MASTER_PORT"},
        BadEnvironment{"no_address", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}}, "MASTER_ADDR"}),
    [](const auto& test) { return test.param.name; });

TEST_P(WrongEnvironment, is_named) {
  const Environment variables(GetParam().variables);
  try {
    Mesh::from_environment(std::chrono::seconds(1));
    FAIL() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(std::string(error.what()).rfind(GetParam().named + " must be", 0), 0U) << error.what();
  }
}

}  // namespace
}  // namespace ghostshard::fsdp
