#include "client/cli/completion.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/cli/request_flags.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem::cli {
namespace {

constexpr char kCompletionIntro[] =
    "tandem completion: prints a script that completes commands, flags and values in a shell.\n\n"
    "Usage: tandem completion bash|zsh\n\n"
    "  eval \"$(tandem completion bash)\"                          (in ~/.bashrc)\n"
    "  tandem completion zsh > \"${fpath[1]}/_tandem\"             (once)\n";

// Values of flags, as branches of a shell's `case`. @METHODS@ is replaced.
constexpr char kValues[] = R"sh(    --format) values='text json' ;;
    --color) values='auto always never' ;;
    --method|--methods) values='@METHODS@' ;;
    --require-contract) values='ANY LOSSY DISTRIBUTION EXACT_UP_TO_ROUNDING EXACT' ;;
    --model) values=$("$program" models --names --timeout 2 2>/dev/null) ;;
)sh";

constexpr char kBash[] = R"sh(# bash completion of tandem: eval "$(tandem completion bash)"
_tandem() {
  local program=$1 current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} values=
  # bash splits --flag=value into three words.
  if [ "$before" = = ]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi
  if [ "$current" = = ]; then before=${COMP_WORDS[COMP_CWORD-1]} current=; fi
  COMPREPLY=()
  if [ "$COMP_CWORD" = 1 ]; then
    COMPREPLY=($(compgen -W '@COMMANDS@' -- "$current"))
    return
  fi
  case $before in
@VALUES@    completion) values='bash zsh' ;;
    *)
      case $current in
        -*) values=$("$program" "${COMP_WORDS[1]}" --help 2>/dev/null | sed -n 's/^  \(--[a-z0-9-]*\).*/\1/p') ;;
      esac
      ;;
  esac
  COMPREPLY=($(compgen -W "$values" -- "$current"))
}
complete -o default -F _tandem tandem
)sh";

constexpr char kZsh[] = R"sh(#compdef tandem
# zsh completion of tandem: tandem completion zsh > "${fpath[1]}/_tandem", or eval "$(tandem completion zsh)"
_tandem() {
  local program=$words[1] before=$words[CURRENT-1] values=
  if (( CURRENT == 2 )); then
    local -a known
    known=(
@DESCRIBED@    )
    _describe command known
    return
  fi
  case $before in
@VALUES@    completion) values='bash zsh' ;;
    *)
      case $words[CURRENT] in
        -*) values=$("$program" $words[2] --help 2>/dev/null | sed -n 's/^  \(--[a-z0-9-]*\).*/\1/p') ;;
      esac
      ;;
  esac
  if [[ -n $values ]]; then compadd -- ${=values}; else _files; fi
}
if [[ $funcstack[1] == _tandem ]]; then _tandem "$@"; else compdef _tandem tandem; fi
)sh";

}  // namespace

std::string completion_script(absl::string_view shell, absl::Span<const Command> commands) {
  std::string names, described;
  for (const Command& command : commands) {
    absl::StrAppend(&names, names.empty() ? "" : " ", command.name);
    absl::StrAppend(&described, "      '", command.name, ":", command.summary, "'\n");
  }
  const std::string values =
      absl::StrReplaceAll(kValues, {{"@METHODS@", absl::StrJoin(method_names(), " ")}});
  if (shell == "bash") {
    return absl::StrReplaceAll(kBash, {{"@COMMANDS@", names}, {"@VALUES@", values}});
  }
  if (shell == "zsh") {
    return absl::StrReplaceAll(kZsh, {{"@DESCRIBED@", described}, {"@VALUES@", values}});
  }
  return "";
}

namespace {

absl::StatusOr<int> run_completion(CommandLine& line) {
  TANDEM_ASSIGN_OR_RETURN(const bool go, line.parse(CommandLine::kAnyNumber, /*offline=*/true));
  if (!go) return kSuccess;
  const std::string shell = line.arguments().size() == 1 ? line.arguments().front() : "";
  const std::string script = completion_script(shell, commands());
  if (script.empty()) return out_of_range("SHELL", quote_value(shell), "bash, zsh");
  std::fputs(script.c_str(), stdout);
  return kSuccess;
}

}  // namespace

Command completion_command() {
  return {"completion", "print a completion script for a shell", kCompletionIntro, run_completion};
}

}  // namespace tandem::cli
