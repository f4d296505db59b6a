// What a user may give as a budget, and what a machine has.
#include "dp/planning/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "dp/planning/host_memory_left.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::tests {
namespace {

namespace fs = std::filesystem;

TEST(MemoryBudget, IsMebibytesOrAFactor) {
  EXPECT_EQ(dp::MemoryBudget::parse("600").bytes, 600.0 * (1 << 20));
  EXPECT_EQ(dp::MemoryBudget::parse("0.5").bytes, 512.0 * (1 << 10));
  EXPECT_EQ(dp::MemoryBudget::parse("1.05x").times_plain, 1.05);
  EXPECT_FALSE(dp::MemoryBudget::parse("1.05x").bytes.has_value());
  EXPECT_FALSE(dp::MemoryBudget::parse("").given());
  for (const char* text : {"x", "0", "-1", "0x", "nan", "inf", "infx", "1e999", "10 MiB", "1.5xx", " 5", "5 "}) {
    EXPECT_THAT([text] { dp::MemoryBudget::parse(text); },
                testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr(std::string("got '") + text + "'")));
  }
}

TEST(MemoryRoom, IsTheSameOnAllRanksAndSharedOut) {
  std::vector<double> found(2);
  run_ranks(2, [&](fsdp::Mesh& mesh) { found[static_cast<size_t>(mesh.rank())] = dp::memory_room(mesh); });
  EXPECT_EQ(found[0], found[1]);
  EXPECT_GT(found[0], 1 << 20);
  EXPECT_LT(found[0], dp::host_memory_left());
}

class HostMemoryLeft : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const fs::path file = folder_.path() / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  double left() const { return dp::host_memory_left(folder_.path()); }

  TemporaryFolder folder_;
};

TEST_F(HostMemoryLeft, IsWhatTheKernelCallsAvailable) {
  EXPECT_TRUE(std::isinf(left())) << "nothing to read";
  write("proc/meminfo", "MemTotal:       24000 kB\nMemFree:  100 kB\nMemAvailable:    5000 kB\n");
  EXPECT_EQ(left(), 5000.0 * 1024);
}

TEST_F(HostMemoryLeft, IsLessInAGroupOfVersion2OrUnderOne) {
  write("proc/meminfo", "MemAvailable:    5000 kB\n");
  write("proc/self/cgroup", "0::/jobs/mine\n");
  write("sys/fs/cgroup/jobs/mine/memory.max", "max\n");
  write("sys/fs/cgroup/jobs/mine/memory.current", "1000\n");
  EXPECT_EQ(left(), 5000.0 * 1024) << "no limit";
  write("sys/fs/cgroup/jobs/mine/memory.max", "4000\n");
  EXPECT_EQ(left(), 3000);
  write("sys/fs/cgroup/jobs/mine/memory.stat", "anon 600\ninactive_file 250\nactive_file 100\n");
  EXPECT_EQ(left(), 3250) << "a file's pages in the cache can be dropped";
  write("sys/fs/cgroup/jobs/memory.max", "2000\n");
  write("sys/fs/cgroup/jobs/memory.current", "1900\n");
  EXPECT_EQ(left(), 100) << "the group above allows less";
}

TEST_F(HostMemoryLeft, IsLessInAGroupOfVersion1) {
  write("proc/meminfo", "MemAvailable:    5000 kB\n");
  write("proc/self/cgroup", "9:name=systemd:/\n5:cpu,memory:/mine\n0::/\n");
  write("sys/fs/cgroup/memory/mine/memory.limit_in_bytes", "4000\n");
  write("sys/fs/cgroup/memory/mine/memory.usage_in_bytes", "1000\n");
  write("sys/fs/cgroup/memory/mine/memory.stat", "inactive_file 1\ntotal_inactive_file 30\n");
  EXPECT_EQ(left(), 3030);
}

TEST_F(HostMemoryLeft, IsThatOfTheMountIfTheGroupIsNotInSight) {
  write("proc/meminfo", "MemAvailable:    5000 kB\n");
  write("proc/self/cgroup", "0::/elsewhere/of/the/host\n");
  write("sys/fs/cgroup/memory.max", "700\n");
  write("sys/fs/cgroup/memory.current", "800\n");
  EXPECT_EQ(left(), 0) << "over its limit already";
}

}  // namespace
}  // namespace ghostshard::tests
