// Ranks that were started differently end before they begin, and a resumed run is the one that began.
#include "dp/run/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <mutex>

#include "dp/run/digest.h"
#include "fsdp/agree.h"
#include "tests/support/keys.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::dp {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::ThrowsMessage;

std::vector<Part> parts() {
  return {{"--clip-norm", "1", Part::Binds::kRun},
          {"--microbatch", "16"},
          {"the texts in --data", digest_of("texts"), Part::Binds::kRunInSecret}};
}

std::vector<Part> changed(const std::string& name, const std::string& value) {
  auto all = parts();
  for (Part& part : all) {
    if (part.name == name) part.value = value;
  }
  return all;
}

// What agree_on() says on each of three ranks; empty if nothing.
std::vector<std::string> said_on_ranks(const std::function<std::vector<Part>(int64_t rank)>& parts_of) {
  std::mutex mutex;
  std::vector<std::string> said(3);
  tests::run_ranks(3, [&](fsdp::Mesh& mesh) {
    std::string sentence;
    try {
      agree_on(mesh, parts_of(mesh.rank()));
    } catch (const fsdp::AgreedFailure& failure) {
      sentence = failure.what();
      EXPECT_TRUE(failure.callers_mistake());
    }
    const std::lock_guard lock(mutex);
    said[static_cast<size_t>(mesh.rank())] = sentence;
  });
  return said;
}

TEST(Agreement, OfEqualRanksSaysNothing) {
  EXPECT_THAT(said_on_ranks([](int64_t) { return parts(); }), Each(IsEmpty()));
}

TEST(Agreement, NamesThePartAndTheRankInOneSentenceForAll) {
  const auto said = said_on_ranks([](int64_t rank) { return rank == 1 ? changed("--clip-norm", "100") : parts(); });
  EXPECT_THAT(said, Each("all ranks must be alike; other than on rank 0: --clip-norm on rank 1"));
}

TEST(Agreement, NamesEveryPartAndAllRanksIfRank0IsTheOddOne) {
  const auto said = said_on_ranks([](int64_t rank) {
    return rank == 0 ? changed("the texts in --data", digest_of("others")) : changed("--microbatch", "8");
  });
  EXPECT_THAT(said, Each("all ranks must be alike; other than on rank 0: --microbatch on ranks 1, 2; the texts in "
                         "--data on ranks 1, 2"));
}

TEST(Agreement, NoticesAPartThatOnlyOneRankHas) {
  for (const int64_t with : {0, 2}) {
    const auto said = said_on_ranks([&](int64_t rank) {
      auto all = parts();
      if (rank == with) all.push_back({"--resume", ""});
      return all;
    });
    EXPECT_THAT(said, Each(HasSubstr("--resume on rank")));
  }
}

TEST(Agreement, RefusesAPartThatIsNamedTwice) {
  const auto mesh = fsdp::Mesh::single();
  EXPECT_THROW(agree_on(*mesh, {{"a", "1"}, {"a", "2"}}), std::invalid_argument);
}

TEST(WeightsDigest, IsTheSameForEveryNumberOfRanksAndSeesOneBit) {
  std::mutex mutex;
  std::set<std::string> digests;
  const auto digest_on = [&](fsdp::Mesh& mesh, float last) {
    fsdp::ShardedModel model(mesh, {{"block", {{"a", {5, 3}}, {"b", {7}}}}});
    at::Tensor b = at::arange(7, at::kFloat);
    b[6] = last;
    model.set_parameter(model.parameter("a"), at::ones({5, 3}));
    model.set_parameter(model.parameter("b"), b);
    const std::string digest = digest_of_weights(model);
    const std::lock_guard lock(mutex);
    digests.insert(digest);
  };
  for (const int64_t ranks : {1, 2, 3}) tests::run_ranks(ranks, [&](fsdp::Mesh& mesh) { digest_on(mesh, 6.0F); });
  EXPECT_EQ(digests.size(), 1U);
  digest_on(*fsdp::Mesh::single(), std::nextafter(6.0F, 7.0F));
  EXPECT_EQ(digests.size(), 2U);
}

// ---------------------------------------------------------------------------------------------------------------------
// What binds a run

class Binding : public testing::Test {
 protected:
  Binding() {
    const auto path = folder_.path() / "key";
    std::ofstream(path, std::ios::binary) << std::string(32, 'k');
    ::chmod(path.c_str(), 0600);
    key_.emplace(RunKey::from_file(path));
  }
  nlohmann::json header(const RunKey& key) const { return {{"binding", binding_header(parts(), key)}}; }

  tests::TemporaryFolder folder_;
  std::optional<RunKey> key_;
};

TEST_F(Binding, HoldsWhatIsPublicAsItIsAndOfSecretsOnlyATagUnderTheKey) {
  const std::string text = header(*key_).dump();
  EXPECT_THAT(text, AllOf(HasSubstr("--clip-norm"), Not(HasSubstr("--microbatch")),
                          Not(HasSubstr(digest_of("texts").substr(7))), HasSubstr(key_->tag_of(digest_of("texts")))));
  const RunKey lost = RunKey::generate();
  EXPECT_THAT(header(lost).dump(), Not(HasSubstr("--data"))) << "a tag under a key that dies could never be compared";
}

TEST_F(Binding, OfTheSamePartsIsAcceptedWithAndWithoutTheKey) {
  EXPECT_NO_THROW(check_binding(header(*key_), changed("--microbatch", "1"), &*key_));
  EXPECT_NO_THROW(check_binding(header(*key_), changed("the texts in --data", "other"), nullptr));
}

TEST_F(Binding, RefusesEveryChangeByName) {
  EXPECT_THAT([&] { check_binding(header(*key_), changed("--clip-norm", "2"), nullptr); },
              ThrowsMessage<std::invalid_argument>("--clip-norm must be what the run began with (1), is 2"));
  EXPECT_THAT([&] { check_binding(header(*key_), changed("the texts in --data", digest_of("others")), &*key_); },
              ThrowsMessage<std::invalid_argument>("the texts in --data must be what the run began with"));
  auto more = parts();
  more.push_back({"--freeze", "wte", Part::Binds::kRun});
  EXPECT_THAT([&] { check_binding(header(*key_), more, &*key_); },
              ThrowsMessage<std::invalid_argument>("--freeze must be what the run began with (not given), is wte"));
  const std::vector<Part> fewer = {parts()[1], parts()[2]};
  EXPECT_THAT([&] { check_binding(header(*key_), fewer, &*key_); },
              ThrowsMessage<std::invalid_argument>("--clip-norm must be what the run began with (1), is not given"));
}

TEST_F(Binding, OfAnOlderHeaderProvesNothing) {
  EXPECT_THAT(
      [&] {
        check_binding({{"run_id", "0"}}, parts(), &*key_);
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("older version")));
}

}  // namespace
}  // namespace ghostshard::dp
