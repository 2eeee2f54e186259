//! `allfold predict`: names the classes of pictures, by the weights of a checkpoint.

use allfold_cli::error::CommandResult;
use allfold_cli::output::RunOutput;
use std::path::PathBuf;

/// Flags of `predict`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold predict checkpoints cat.jpg dog.png
  allfold predict checkpoints/best.safetensors photos/cat.jpg --top 1

The checkpoint is of a run of `allfold train` on your own pictures, CIFAR-10, MNIST, Fashion-MNIST or the digits. A picture is resized,
and for a model of grey pictures its brightness counts: MNIST and the digits are white on black.")]
pub(crate) struct Args {
    /// The checkpoint: a file, or a folder of checkpoints, of which the best is taken, or else the newest
    checkpoint: PathBuf,
    /// The pictures, JPEG or PNG files
    #[arg(required = true)]
    pictures: Vec<PathBuf>,
    /// The number of classes to print for each picture, 1 to 1048576
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    top: u32,
}

/// Prints the most likely classes of each picture.
///
/// # Errors
/// A checkpoint or a picture that cannot be read.
pub fn run(args: &Args) -> CommandResult {
    let mut output = RunOutput::open(None, None)?;
    let predicted = allfold_trainer::predict::predict(&args.checkpoint, &args.pictures)?;
    for (path, classes) in args.pictures.iter().zip(predicted) {
        let classes = classes.iter().take(args.top as usize);
        let said: Vec<String> =
            classes.map(|(name, probability)| format!("{name} {:.1} %", 100.0 * probability)).collect();
        output.say(format!("{}: {}", path.display(), said.join(", ")))?;
    }
    output.close()
}
