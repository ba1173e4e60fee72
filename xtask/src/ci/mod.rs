//! The checks that must pass before a change lands.
//!
//! [`steps`] is the table of steps and their units. Every run takes the core; [`choice`] adds the units that the change
//! touches, and draws more by the hash of the commit until a budget is spent. [`lanes`] runs the chosen units in two
//! lanes, and leaves out and names what does not fit into the time. No unit fails because the machine is slow.

mod change;
mod choice;
mod families;
mod lanes;
mod options;
mod report;
mod steps;

use change::Change;
use choice::Chosen;
use options::{Mode, Options};

/// Parses the words after `ci` and does what they ask.
///
/// # Errors
/// When the words are wrong, git cannot be read or a step fails.
pub(crate) fn main(words: &[String]) -> Result<(), String> {
    let options = Options::parse(words)?;
    match &options.mode {
        Mode::Help => {
            print!("{}", options::HELP);
            Ok(())
        }
        Mode::List(change) => {
            let change = Change::read(change.as_deref())?;
            print!("{}", report::list(&Chosen::by_change(&change)?));
            Ok(())
        }
        Mode::Run(like) => {
            let change = Change::read(like.as_deref())?;
            print!("{}", report::list(&Chosen::by_change(&change)?));
            lanes::run(Chosen::by_change(&change)?, options.seconds)
        }
        Mode::Full => lanes::run(Chosen::all()?, u64::MAX / 4),
        Mode::Named(names) => lanes::run(Chosen::named(names)?, u64::MAX / 4),
    }
}
