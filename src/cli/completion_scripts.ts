/**
 * Completion scripts for bash, zsh and fish, made from tables of flags. Each script knows three places: the command, a flag of it, and
 * the value of a flag. Behind the script of `run` and `launch`, flags are a training script's.
 *
 * @module
 */
import type { Flag } from "../config/flags.ts";

/** A command with its flags. */
export interface CompletedCommand {
  readonly name: string;
  readonly does: string;
  readonly flags: readonly Flag[];
}

/** Name under which the flags of a training script are listed; no command has it. */
export const SCRIPT = "script.ts";

/** The maker of each shell's script. */
export const SHELLS: Readonly<Record<string, (commands: readonly CompletedCommand[]) => string>> = {
  bash: bashScript,
  zsh: zshScript,
  fish: fishScript,
};

/** Words in a flag's placeholder that stand for values, and are none themselves. */
const KINDS = /^(?:int|number|text|value|path|file|folder|name|n|part|object|json|array)$/;
const FILES = /path|file|folder|part/;

/** The values that a flag lists; empty if it lists none. */
function choicesOf({ takes, placeholder = "" }: Flag): readonly string[] {
  if (takes === "switch" || !placeholder.includes("|")) return [];
  return placeholder.replace(/^<|>$/g, "").split("|").filter((word) => /^[\w.-]+$/.test(word) && !KINDS.test(word));
}

function takesFiles({ takes, placeholder = "" }: Flag): boolean {
  return takes !== "switch" && FILES.test(placeholder);
}

/** A flag in each form in which it may be typed. */
function formsOf({ name, takes, default: usual }: Flag): readonly string[] {
  return takes === "switch" && usual === "true" ? [`--${name}`, `--no-${name}`] : [`--${name}`];
}

/** The words that a command takes without a flag; empty where it takes files. */
function wordsOf({ flags }: CompletedCommand): readonly string[] {
  return flags.filter(({ takes }) => takes === "many").flatMap(choicesOf);
}

/** Text between single quotes of bash and zsh. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** The commands without the flags of a training script. */
function named(commands: readonly CompletedCommand[]): readonly CompletedCommand[] {
  return commands.filter(({ name }) => name !== SCRIPT);
}

function bashScript(commands: readonly CompletedCommand[]): string {
  const values = commands.flatMap(({ name, flags }) =>
    flags.filter(({ takes }) => takes !== "switch").map((flag) => {
      const choices = choicesOf(flag);
      const action = takesFiles(flag) ? "files=yes" : choices.length > 0 ? `words=${quoted(choices.join(" "))}` : ":";
      return `    ${quoted(`${name} --${flag.name}`)}) ${action} ;;`;
    })
  );
  const lists = commands.map(({ name, flags }) =>
    `      ${quoted(name)}) words=${quoted(flags.flatMap(formsOf).join(" "))} ;;`
  );
  const plain = commands.filter((command) => wordsOf(command).length > 0).map((command) =>
    `        ${quoted(command.name)}) words=${quoted(wordsOf(command).join(" "))} ;;`
  );
  return `# Completions of fullyshard for bash, made by 'fullyshard completions bash'.
_fullyshard() {
  local word="\${COMP_WORDS[COMP_CWORD]}" previous="\${COMP_WORDS[COMP_CWORD - 1]}" command='' words='' files='' i
  # Bash makes three words of --flag=value.
  if [[ $word == = ]]; then word=''
  elif [[ $previous == = ]]; then previous="\${COMP_WORDS[COMP_CWORD - 2]}"
  fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "\${COMP_WORDS[i]}" in
      --runtime) if [[ -z $command ]]; then ((i++)); fi ;;
      -*) ;;
      *.ts | *.mts | *.js | *.mjs) if [[ $command == run || $command == launch ]]; then command=${quoted(SCRIPT)}; fi ;;
      *) if [[ -z $command ]]; then command="\${COMP_WORDS[i]}"; fi ;;
    esac
  done
  case "$command $previous" in
    ' --runtime') words='bun deno auto' ;;
${values.join("\n")}
    *) case "$command" in
      '') words=${quoted([...named(commands).map(({ name }) => name), "--runtime", "--help", "--version"].join(" "))} ;;
${lists.join("\n")}
      esac
      if [[ -n $command && $word != -* ]]; then
        words=''
        case "$command" in
${plain.join("\n")}
        *) files=yes ;;
        esac
      fi ;;
  esac
  COMPREPLY=()
  if [[ -n $files ]]; then compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$word")
  elif [[ -n $words ]]; then mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
}
complete -F _fullyshard fullyshard
`;
}

function zshScript(commands: readonly CompletedCommand[]): string {
  const item = (name: string, text: string): string => quoted(`${name.replaceAll(":", "\\:")}:${text}`);
  const values = commands.flatMap(({ name, flags }) =>
    flags.filter(({ takes }) => takes !== "switch").map((flag) => {
      const choices = choicesOf(flag);
      const action = takesFiles(flag) ? "_files" : choices.length > 0 ? `compadd -- ${choices.join(" ")}` : ":";
      return `    ${quoted(`${name} --${flag.name}`)}) ${action}; return ;;`;
    })
  );
  const lists = commands.map(({ name, flags }) => {
    const items = flags.flatMap((flag) => formsOf(flag).map((form) => item(form, flag.description)));
    return `    ${quoted(name)}) list=(${items.join(" ")}) ;;`;
  });
  const plain = commands.filter((command) => wordsOf(command).length > 0).map((command) =>
    `    ${quoted(command.name)}) compadd -- ${wordsOf(command).join(" ")} ;;`
  );
  return `#compdef fullyshard
# Completions of fullyshard for zsh, made by 'fullyshard completions zsh'.
_fullyshard() {
  local command='' i
  local -a list
  for ((i = 2; i < CURRENT; i++)); do
    case "$words[i]" in
      --runtime) if [[ -z $command ]]; then ((i++)); fi ;;
      -*) ;;
      *.ts | *.mts | *.js | *.mjs) if [[ $command == run || $command == launch ]]; then command=${quoted(SCRIPT)}; fi ;;
      *) if [[ -z $command ]]; then command="$words[i]"; fi ;;
    esac
  done
  case "$command $words[CURRENT-1]" in
    ' --runtime') compadd -- bun deno auto; return ;;
${values.join("\n")}
  esac
  if [[ -z $command ]]; then
    list=(${named(commands).map(({ name, does }) => item(name, does)).join(" ")})
    _describe command list
    return
  fi
  if [[ $PREFIX != -* ]]; then
    case "$command" in
${plain.join("\n")}
    *) _files ;;
    esac
    return
  fi
  case "$command" in
${lists.join("\n")}
  esac
  _describe flag list
}
if [[ $funcstack[1] == _fullyshard ]]; then _fullyshard "$@"; else compdef _fullyshard fullyshard; fi
`;
}

function fishScript(commands: readonly CompletedCommand[]): string {
  const text = (plain: string): string => `'${plain.replaceAll("\\", "\\\\").replaceAll("'", "\\'")}'`;
  const list = named(commands);
  const names = list.map(({ name }) => name).join(" ");
  const begin = list.map(({ name, does }) =>
    `complete -c fullyshard -n "not __fish_seen_subcommand_from ${names}" -f -a ${text(name)} -d ${text(does)}`
  );
  const plain = commands.filter((command) => wordsOf(command).length > 0).map((command) =>
    `complete -c fullyshard -n "__fish_seen_subcommand_from ${command.name}" -f -a ${text(wordsOf(command).join(" "))}`
  );
  const flags = commands.flatMap(({ name, flags }) => {
    const isScripted = name === "run" || name === "launch";
    const where = name === SCRIPT
      ? "__fullyshard_has_script"
      : `__fish_seen_subcommand_from ${name}${isScripted ? "; and not __fullyshard_has_script" : ""}`;
    return flags.flatMap((flag) => {
      const choices = choicesOf(flag);
      const value = flag.takes === "switch"
        ? ""
        : takesFiles(flag)
        ? " -r -F"
        : ` -x${choices.length > 0 ? ` -a ${text(choices.join(" "))}` : ""}`;
      return formsOf(flag).map((form) =>
        `complete -c fullyshard -n "${where}" -l ${form.slice(2)}${value} -d ${text(flag.description)}`
      );
    });
  });
  return `# Completions of fullyshard for fish, made by 'fullyshard completions fish'.
function __fullyshard_has_script
    __fish_seen_subcommand_from run launch; and string match -qr '\\.m?[jt]s$' -- (commandline -opc)
end
${begin.join("\n")}
complete -c fullyshard -n "not __fish_seen_subcommand_from ${names}" -l runtime -x -a 'bun deno auto'
${plain.join("\n")}
${flags.join("\n")}
`;
}
