//! `allfold completions` and `allfold man`: the command line described for a shell and for `man`.

use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::RunOutput;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

/// Flags of `completions`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold completions bash > ~/.local/share/bash-completion/completions/allfold
  allfold completions zsh > ~/.zfunc/_allfold
  allfold completions fish > ~/.config/fish/completions/allfold.fish")]
pub(crate) struct CompletionArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Flags of `man`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold man | man -l -
  allfold man train > allfold-train.1")]
pub(crate) struct ManArgs {
    /// The command whose page is printed [default: the page of allfold itself]
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

/// Prints the script that completes the command line of `cli` in a shell.
pub(crate) fn completions(args: &CompletionArgs, mut cli: Command) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli, "allfold", &mut script);
    say(script)
}

/// Prints a manual page of `cli`, in roff.
pub(crate) fn man(args: &ManArgs, mut cli: Command) -> CommandResult {
    // Building gives every command the flags that it inherits, and its whole name.
    cli.build();
    let page = match &args.command {
        None => cli,
        Some(name) => {
            let mut known: Vec<&str> =
                cli.get_subcommands().filter(|own| !own.is_hide_set()).map(Command::get_name).collect();
            known.retain(|known| *known != "help");
            let found = cli.find_subcommand(name).filter(|_| known.contains(&name.as_str()));
            found
                .cloned()
                .ok_or_else(|| CommandError::usage(allfold_sim::suggest::unknown("command", name, &known)))?
        }
    };
    let mut text = Vec::new();
    Man::new(page).render(&mut text).map_err(CommandError::run)?;
    say(text)
}

fn say(text: Vec<u8>) -> CommandResult {
    let mut output = RunOutput::open(None, None)?;
    output.say(String::from_utf8_lossy(&text).trim_end())?;
    output.close()
}
