#pragma once
// Runs a program and returns what it printed, with its exit status on the last line.
#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace portile::test {

/// `command` goes through the shell; PORTILE_* of this process are removed unless the command sets them.
inline std::string child(const std::string& command) {
  std::string output;
  std::FILE* pipe =
      popen(("unset PORTILE_BACKEND_PATH PORTILE_IMPL PORTILE_LOG; " + command + " 2>&1").c_str(), "r");
  if (!pipe) return "popen failed";
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, n);
  const int status = pclose(pipe);
  if (WIFSIGNALED(status)) return output + "signal " + std::to_string(WTERMSIG(status)) + "\n";
  return output + "exit " + std::to_string(WEXITSTATUS(status)) + "\n";
}

}  // namespace portile::test
