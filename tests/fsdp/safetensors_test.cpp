#include "fsdp/safetensors.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace ghostshard::fsdp {
namespace {

// A folder of its own for each test.
class Safetensors : public testing::Test {
 protected:
  std::filesystem::path path() const { return folder_ / "model.safetensors"; }

  void write_raw(const std::string& header, const std::string& data, int64_t header_bytes = -1) const {
    const uint64_t length = header_bytes < 0 ? header.size() : static_cast<uint64_t>(header_bytes);
    std::ofstream file(path(), std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof(length));
    file << header << data;
  }
  const tests::TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(Safetensors, come_back_as_they_were_written) {
  const std::vector<NamedTensor> tensors = {{"floats", at::arange(6, at::kFloat).view({2, 3})},
                                            {"a byte", at::tensor({7}, at::kByte)},
                                            {"doubles after an odd byte", at::tensor({0.25, -1e300}, at::kDouble)},
                                            {"halves", at::tensor({1.5, 2.5}).to(at::kHalf)},
                                            {"bfloats", at::tensor({1.5, 2.5}).to(at::kBFloat16)},
                                            {"longs", at::tensor({-1L, 1L << 40}, at::kLong)},
                                            {"ints", at::tensor({-5, 5}, at::kInt)},
                                            {"scalar", at::scalar_tensor(3.5, at::kFloat)},
                                            {"nothing", at::empty({0, 4}, at::kFloat)},
                                            {"flags", at::tensor({1, 0}, at::kByte).to(at::kBool)}};
  write_safetensors(path(), tensors, {{"format", "pt"}, {"step", "12"}});
  EXPECT_FALSE(std::filesystem::exists(path().string() + ".partial"));
  const SafetensorsFile file(path());
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"step", "12"}}));
  EXPECT_EQ(file.names().size(), tensors.size());
  EXPECT_EQ(file.names().front(), "floats");
  for (const auto& [name, tensor] : tensors) {
    ASSERT_TRUE(file.contains(name)) << name;
    const at::Tensor read = file.tensor(name);
    EXPECT_EQ(read.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(read.sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(at::equal(read, tensor)) << name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(read.data_ptr()) % c10::elementSize(read.scalar_type()), 0U) << name;
  }
}

TEST_F(Safetensors, data_begin_at_a_multiple_of_eight) {
  for (const std::string name : {"a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg"}) {
    write_safetensors(path(), {{name, at::ones({1})}}, {});
    std::ifstream file(path(), std::ios::binary);
    uint64_t length = 0;
    file.read(reinterpret_cast<char*>(&length), sizeof(length));
    EXPECT_EQ(length % 8, 0U) << name;
  }
}

TEST_F(Safetensors, views_outlive_the_file_object) {
  write_safetensors(path(), {{"w", at::arange(5, at::kFloat)}}, {});
  at::Tensor view;
  {
    const SafetensorsFile file(path());
    view = file.tensor("w");
  }
  EXPECT_TRUE(at::equal(view, at::arange(5, at::kFloat)));
}

TEST_F(Safetensors, pythons_library_reads_and_writes_the_same) {
  const char* python = std::getenv("GHOSTSHARD_PYTHON");
  ASSERT_NE(python, nullptr) << "GHOSTSHARD_PYTHON must name a Python with torch and safetensors (ctest sets it)";
  write_safetensors(path(), {{"w", at::arange(6, at::kFloat).view({2, 3})}, {"ids", at::tensor({3L, 4L}, at::kLong)}},
                    {{"format", "pt"}});
  const auto other = folder_ / "python.safetensors";
  const std::string script = "import torch; from safetensors.torch import load_file, save_file; t = load_file('" +
                             path().string() +
                             "'); assert torch.equal(t['w'], torch.arange(6.).view(2, 3)), t; "
                             "assert t['ids'].tolist() == [3, 4], t; save_file({'z': t['w'].half(), 'i': t['ids']}, '" +
                             other.string() + "', {'made': 'there'})";
  ASSERT_EQ(std::system((std::string(python) + " -c \"" + script + "\"").c_str()), 0);
  const SafetensorsFile file(other);
  EXPECT_TRUE(at::equal(file.tensor("z"), at::arange(6, at::kHalf).view({2, 3})));
  EXPECT_TRUE(at::equal(file.tensor("i"), at::tensor({3L, 4L}, at::kLong)));
  EXPECT_EQ(file.metadata().at("made"), "there");
}

TEST_F(Safetensors, that_are_missing_name_the_path_and_the_reason) {
  try {
    const SafetensorsFile file(path());
    FAIL() << "opened";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(path().string() + " cannot be read: No such file or directory"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(SafetensorsFile{folder_}, std::invalid_argument) << "a folder is no file";
  EXPECT_THROW(write_safetensors(folder_ / "no" / "such" / "folder", {}, {}), std::runtime_error);
}

TEST_F(Safetensors, a_tensor_that_is_not_there_is_named) {
  write_safetensors(path(), {{"w", at::ones({1})}}, {});
  const SafetensorsFile file(path());
  try {
    file.tensor("v");
    FAIL() << "found";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("'v'"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find(path().string()), std::string::npos);
  }
}

TEST_F(Safetensors, that_cannot_be_written_leave_the_old_file) {
  write_safetensors(path(), {{"w", at::ones({1})}}, {});
  EXPECT_THROW(write_safetensors(path(), {{"w", at::ones({4, 4}).t()}, {"v", at::ones({4, 2}).t()}}, {}),
               std::invalid_argument);
  EXPECT_THROW(write_safetensors(path(), {{"w", at::ones({1})}, {"w", at::ones({1})}}, {}), std::invalid_argument);
  EXPECT_THROW(write_safetensors(path(), {{"w", at::ones({1}, at::kComplexFloat)}}, {}), std::invalid_argument);
  EXPECT_THROW(write_safetensors(path(), {{"__metadata__", at::ones({1})}}, {}), std::invalid_argument);
  EXPECT_TRUE(SafetensorsFile(path()).contains("w"));
}

struct CorruptFile {
  std::string name;
  std::string header;
  size_t data_bytes;
  std::string rule;  // part of the message
  int64_t header_bytes = -1;
};

class CorruptSafetensors : public Safetensors, public testing::WithParamInterface<CorruptFile> {};

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

INSTANTIATE_TEST_SUITE_P(
    , CorruptSafetensors,
    testing::Values(
        CorruptFile{"header_longer_than_the_file", "{}", 0, "header must be at most", 3},
        CorruptFile{"header_of_2_to_the_63", "{}", 0, "header must be at most", std::numeric_limits<int64_t>::max()},
        CorruptFile{"header_no_json", "{]", 0, "must be JSON"}, CorruptFile{"header_a_list", "[]", 0, "begin with '{'"},
        CorruptFile{"header_empty", "", 0, "begin with '{'"},
        CorruptFile{"header_cut_off", R"({"w":)", 0, "must be JSON"},
        CorruptFile{"name_twice",
                    "{\"w\":" + entry("F32", "[1]", "[0,4]") + ",\"w\":" + entry("F32", "[1]", "[4,8]") + "}", 8,
                    "used once"},
        CorruptFile{"key_twice", R"({"w":{"dtype":"F32","dtype":"F64","shape":[1],"data_offsets":[0,4]}})", 4,
                    "used once"},
        CorruptFile{"unknown_dtype", "{\"w\":" + entry("F8_E4M3", "[4]", "[0,4]") + "}", 4, "dtype must be one of"},
        CorruptFile{"no_dtype", R"({"w":{"shape":[1],"data_offsets":[0,4]}})", 4, "must hold dtype"},
        CorruptFile{"entry_a_number", R"({"w":3})", 0, "must hold dtype"},
        CorruptFile{"negative_extent", "{\"w\":" + entry("F32", "[-1]", "[0,4]") + "}", 4, "shape must be"},
        CorruptFile{"fractional_extent", "{\"w\":" + entry("F32", "[1.0]", "[0,4]") + "}", 4, "shape must be"},
        CorruptFile{"offsets_past_the_end", "{\"w\":" + entry("F32", "[2]", "[0,8]") + "}", 4, "lie within"},
        CorruptFile{"offsets_falling", "{\"w\":" + entry("F32", "[1]", "[4,0]") + "}", 4, "lie within"},
        CorruptFile{"three_offsets", "{\"w\":" + entry("F32", "[1]", "[0,4,8]") + "}", 8, "two non-negative"},
        CorruptFile{"shape_too_large", "{\"w\":" + entry("F32", "[2]", "[0,4]") + "}", 4,
                    "the bytes that shape and dtype need"},
        CorruptFile{"shape_that_overflows", "{\"w\":" + entry("F32", "[4294967296,4294967296]", "[0,0]") + "}", 0,
                    "the bytes that shape and dtype need"},
        CorruptFile{"overlap",
                    "{\"v\":" + entry("F32", "[2]", "[0,8]") + ",\"w\":" + entry("F32", "[2]", "[4,12]") + "}", 12,
                    "without overlap or gap"},
        CorruptFile{"gap", "{\"v\":" + entry("F32", "[1]", "[0,4]") + ",\"w\":" + entry("F32", "[1]", "[8,12]") + "}",
                    12, "without overlap or gap"},
        CorruptFile{"data_left_over", "{\"w\":" + entry("F32", "[1]", "[0,4]") + "}", 5, "must fill"},
        CorruptFile{"metadata_no_strings", R"({"__metadata__":{"step":3}})", 0, "strings to strings"}),
    [](const auto& test) { return test.param.name; });

TEST_P(CorruptSafetensors, are_refused_with_path_and_rule) {
  write_raw(GetParam().header, std::string(GetParam().data_bytes, '\0'), GetParam().header_bytes);
  try {
    const SafetensorsFile file(path());
    FAIL() << "opened";
  } catch (const std::invalid_argument& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find(path().string()), std::string::npos) << what;
    EXPECT_NE(what.find(GetParam().rule), std::string::npos) << what;
  }
}

TEST_F(Safetensors, of_fewer_than_eight_bytes_are_refused) {
  std::ofstream(path()) << "short";
  EXPECT_THROW(SafetensorsFile{path()}, std::invalid_argument);
  std::ofstream(path(), std::ios::trunc).close();
  EXPECT_THROW(SafetensorsFile{path()}, std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::fsdp
