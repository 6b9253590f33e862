// SPDX-License-Identifier: BSD-3-Clause
// Files that are in the way, links that lead elsewhere, and pipes that never answer.
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/model/files.hpp>

#if defined(__unix__)
#include <sys/stat.h>
#endif

#include <detent/error.hpp>
#include <detent/graph/model/npy.hpp>
#include <detent/graph/model/sample_folder.hpp>

#include "check_graph_error.hpp"
#include "temporary_folder.hpp"

namespace {

using detent::error_kind;
namespace fs = std::filesystem;
namespace graph = detent::graph;

std::size_t count_files(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("files: a written file takes the place of another, and of nothing else") {
  const test::temporary_folder folder;
  const fs::path path = folder.write("model", "before");
  const fs::path users = folder.write("model.tmp", "the user's");
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  graph::write_file(path, "after");
  CHECK(graph::read_file(path) == "after");
  CHECK(graph::read_file(users) == "the user's");
  CHECK(fs::status(path).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
  CHECK(count_files(folder.path()) == 2);
  graph::write_file(folder.path() / "new", "");
  CHECK(graph::read_file(folder.path() / "new").empty());
  CHECK(count_files(folder.path()) == 3);
}

TEST_CASE("files: what is not finished leaves nothing behind") {
  const test::temporary_folder folder;
  const fs::path path = folder.write("model", "before");
  {
    graph::replacement_file half(path);
    half.write("aft", 3);
    CHECK(count_files(folder.path()) == 2);
  }
  CHECK(graph::read_file(path) == "before");
  CHECK(count_files(folder.path()) == 1);
  test::check_graph_error(error_kind::io, {"cannot write", "nowhere"},
                          [&] { graph::write_file(folder.path() / "nowhere" / "model", "x"); });
  fs::create_directory(folder.path() / "folder");
  test::check_graph_error(error_kind::io, {"cannot write", "folder"},
                          [&] { graph::write_file(folder.path() / "folder", "x"); });
  CHECK(count_files(folder.path()) == 2);
}

TEST_CASE("files: two writers of one file do not mix") {
  const test::temporary_folder folder;
  const fs::path path = folder.path() / "model";
  const std::string texts[] = {std::string(100000, 'a'), std::string(50000, 'b')};
  std::vector<std::thread> writers;
  for (const std::string& text : texts) {
    writers.emplace_back([&path, &text] {
      for (int i = 0; i < 50; ++i) {
        graph::write_file(path, text);
      }
    });
  }
  for (std::thread& t : writers) {
    t.join();
  }
  const std::string last = graph::read_file(path);
  CHECK((last == texts[0] || last == texts[1]));
  CHECK(count_files(folder.path()) == 1);
}

#if defined(__unix__)
TEST_CASE("files: links, devices and pipes") {
  const test::temporary_folder folder;
  const fs::path target = folder.write("elsewhere/model", "before");
  const fs::path link = folder.path() / "link";
  fs::create_symlink(target, link);
  graph::write_file(link, "after");
  CHECK(fs::is_symlink(link));
  CHECK(graph::read_file(target) == "after");
  CHECK(graph::read_file(link) == "after");
  graph::write_file("/dev/null", "gone");
  CHECK(fs::is_character_file("/dev/null"));
  if (fs::exists("/dev/full")) {
    test::check_graph_error(error_kind::io, {"cannot write /dev/full"},
                            [] { graph::write_file("/dev/full", "x"); });
  }
  const fs::path pipe = folder.path() / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  test::check_graph_error(error_kind::io, {"pipe is not a regular file"},
                          [&] { static_cast<void>(graph::read_file(pipe)); });
  test::check_graph_error(error_kind::io, {"pipe is not a regular file"},
                          [&] { static_cast<void>(graph::read_npy(pipe.string())); });
  test::check_graph_error(error_kind::io, {"elsewhere is a folder"}, [&] {
    static_cast<void>(graph::read_file(folder.path() / "elsewhere"));
  });
}
#endif

TEST_CASE("files: paths that cannot be those of a file") {
  const test::temporary_folder folder;
  // The system would end the name at the null character: the file "model".
  const fs::path model = folder.write("model", "before");
  const fs::path longer = model.string() + std::string(1, '\0') + "behind";
  const auto fails = [](std::initializer_list<std::string_view> words, const auto& call) {
    test::check_graph_error(error_kind::io, words, call);
  };
  fails({"cannot open", "model?behind", "null character"},
        [&] { static_cast<void>(graph::read_file(longer)); });
  fails({"cannot write", "model?behind", "null character"},
        [&] { graph::write_file(longer, "after"); });
  fails({"cannot write", "null character"}, [&] { graph::require_writable(longer); });
  fails({"cannot open", "empty"}, [] { static_cast<void>(graph::read_file("")); });
  fails({"cannot write", "empty"}, [] { graph::write_file("", "after"); });
  fails({"cannot write", "empty"}, [] { graph::require_writable(""); });
  fails({"cannot write", "folder"}, [&] { graph::require_writable(folder.path()); });
  graph::require_writable(model);
  graph::require_writable(folder.path() / "new");
  CHECK(graph::read_file(model) == "before");
  CHECK(count_files(folder.path()) == 1);
  CHECK(graph::file_name_of(std::string("a/b\0c", 5)) == "a_b_c");
}
