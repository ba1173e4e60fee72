//! The environment variables that the launcher sets for its children.
//!
//! Entry points: [`environment`], the variables that the user set; [`without_secrets`], a command whose child does not
//! inherit secrets; [`variables`], the variables of a child: first those of `table.rs` that its slice needs, then those
//! of its device. The user's own value wins, except where a row of the table replaces it: of lists for all chips, each
//! child gets the part for its own chips, and missing flags are appended to `LIBTPU_INIT_ARGS`.

mod table;

use std::path::Path;
use std::process::Command;

use devices::{ChildVariable, Device};

use self::table::{Row, SECRETS, TABLE};
use crate::environment::Environment;
use crate::tpu::Member;
use crate::{download, hosts, tpu};

/// The purpose of a child, which decides its variables.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Setting<'a> {
    /// A child of `compile` or `fit`, which uses libtpu without a TPU.
    Ahead,
    /// A shard that computes on this device, which is not a TPU; or a child of `compile` or `fit` for this device.
    Shard(Device),
    /// A shard that computes on chips of a TPU slice.
    Tpu(Member<'a>),
}

/// A variable of a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    /// The reason why a child needs the variable, which `plan` shows.
    pub(crate) reason: &'static str,
    /// True if the child inherits the user's own value.
    pub(crate) is_yours: bool,
}

/// Returns a command that runs `program` with the environment of this process, but without the secrets in it.
pub(crate) fn without_secrets(program: &Path) -> Command {
    let mut command = Command::new(program);
    for name in SECRETS {
        command.env_remove(name);
    }
    command
}

/// Reads the variables of this process on which plans and downloads depend. A command calls this once.
pub(crate) fn environment() -> Environment {
    let of_devices = devices::TABLE.iter().flat_map(|device| device.variables()).map(|variable| variable.name);
    Environment::read(
        TABLE
            .iter()
            .map(|row| row.name)
            .chain(of_devices)
            .chain(tpu::INPUTS)
            .chain(hosts::INPUTS)
            .chain(download::INPUTS),
    )
}

/// Returns the variables of a child with this purpose, including those for which the user's own value is kept.
pub(crate) fn variables(setting: &Setting<'_>, environment: &Environment) -> Vec<Variable> {
    let of_slice = |row: &Row| {
        let value = (row.value)(setting)?;
        let (value, is_yours) = match environment.get(row.name) {
            None => (value, false),
            Some(yours) if row.name == "LIBTPU_INIT_ARGS" => with_flags(yours, &value),
            Some(yours) if row.replaces_yours => (value.clone(), yours == value),
            Some(yours) => (yours.to_owned(), true),
        };
        Some(Variable { name: row.name, value, reason: row.reason, is_yours })
    };
    let of_device = |variable: &ChildVariable| {
        let yours = environment.get(variable.name);
        let value = yours.unwrap_or(variable.value).to_owned();
        Variable { name: variable.name, value, reason: variable.reason, is_yours: yours.is_some() }
    };
    let device_variables = setting.device().variables().iter().map(of_device);
    TABLE.iter().filter_map(of_slice).chain(device_variables).collect()
}

/// Returns the user's flags followed by those of our flags that the user does not set, and true if none was added.
fn with_flags(yours: &str, ours: &str) -> (String, bool) {
    let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
    let is_set = |flag: &str| yours.split_whitespace().any(|set| name(set) == name(flag));
    let missing: Vec<&str> = ours.split(' ').filter(|flag| !is_set(flag)).collect();
    match missing.is_empty() {
        true => (yours.to_owned(), true),
        false => (format!("{yours} {}", missing.join(" ")), false),
    }
}

impl<'a> Setting<'a> {
    fn device(&self) -> Device {
        match self {
            Self::Ahead | Self::Tpu(_) => Device::TPU,
            Self::Shard(device) => *device,
        }
    }

    fn tpu(&self) -> Option<&Member<'a>> {
        match self {
            Self::Tpu(member) => Some(member),
            Self::Ahead | Self::Shard(_) => None,
        }
    }

    /// Returns the value for a process that loads libtpu, and `None` for another one.
    fn libtpu(&self, value: &str) -> Option<String> {
        match self {
            Self::Ahead | Self::Tpu(_) => Some(value.to_owned()),
            Self::Shard(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::table::LAUNCH_BARRIER;
    use super::*;

    fn values(setting: &Setting<'_>, environment: &[(&'static str, &str)]) -> Vec<(&'static str, String, bool)> {
        let environment = Environment(environment.iter().map(|(name, value)| (*name, (*value).to_owned())).collect());
        let variables = variables(setting, &environment).into_iter();
        variables.map(|variable| (variable.name, variable.value, variable.is_yours)).collect()
    }

    #[test]
    fn plugins_are_told_to_be_quiet() {
        let quiet = ("TF_CPP_MIN_LOG_LEVEL", "1".to_owned(), false);
        assert_eq!(values(&Setting::Shard(Device::XLA_CPU), &[]), std::slice::from_ref(&quiet));
        assert_eq!(values(&Setting::Shard(Device::CUDA), &[]), [quiet]);
        assert_eq!(values(&Setting::Shard(Device::CPU), &[]), []);
        assert_eq!(values(&Setting::Shard(Device::MOCK), &[]), []);
    }

    #[test]
    fn the_users_own_value_stands() {
        let ahead = values(&Setting::Ahead, &[("TPU_LOG_DIR", "/var/log"), ("TPU_MIN_LOG_LEVEL", "")]);
        assert!(ahead.contains(&("TPU_LOG_DIR", "/var/log".into(), true)), "{ahead:?}");
        assert!(ahead.contains(&("TPU_MIN_LOG_LEVEL", "3".into(), false)), "{ahead:?}");
        assert!(ahead.contains(&("TPU_SKIP_MDS_QUERY", "1".into(), false)), "{ahead:?}");
    }

    #[test]
    fn flags_are_appended_to_the_users_own() {
        let flags = |yours: &str| {
            let ahead = values(&Setting::Ahead, &[("LIBTPU_INIT_ARGS", yours)]);
            ahead.into_iter().find(|(name, ..)| *name == "LIBTPU_INIT_ARGS").map(|(_, value, yours)| (value, yours))
        };
        assert_eq!(flags("").unwrap(), (LAUNCH_BARRIER.into(), false));
        assert_eq!(flags("--a=1").unwrap(), (format!("--a=1 {LAUNCH_BARRIER}"), false));
        let theirs = LAUNCH_BARRIER.replace("false", "true");
        assert_eq!(flags(&theirs).unwrap(), (theirs.clone(), true));
        let longer = LAUNCH_BARRIER.replace('=', "_x=");
        assert_eq!(flags(&longer).unwrap(), (format!("{longer} {LAUNCH_BARRIER}"), false));
    }
}
