// The `portile` command. Exit codes: 0 done, 1 a check failed, 2 bad input.
#include <cstdio>

#include <fmt/format.h>

#include <portile/core/status.hpp>
#include <portile/core/version.hpp>

#include "command.hpp"

int main(int argc, char** argv) {
  using namespace portile::tool;
  CLI::App app{"Portable heterogeneous kernels with a run-time dispatcher", "portile"};
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of every subcommand");
  int code = done;
  app.set_version_flag("--version", PORTILE_VERSION);
  add_info(app, code);
  add_ops(app, code);
  add_run(app, code);
  add_explain(app, code);
  add_verify(app, code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? done : bad_input;
  } catch (const usage_error& e) {
    fmt::print(stderr, "portile: {}\n", e.what());
    return bad_input;
  } catch (const portile::error& e) {
    fmt::print(stderr, "portile: {}\n", e.what());
    return e.code() == portile::status_code::invalid_argument ? bad_input : check_failed;
  } catch (const std::exception& e) {
    fmt::print(stderr, "portile: {}\n", e.what());
    return check_failed;
  }
  return code;
}
