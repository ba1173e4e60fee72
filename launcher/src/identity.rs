//! The identity of this executable, which `build.rs` prepares.

use build_id::{Build, BuildId};

/// The identity of this executable, and how it was compiled.
pub(crate) fn build() -> Build {
    Build {
        version: env!("CARGO_PKG_VERSION"),
        id: BuildId::of_process().clone(),
        commit: Some(env!("HILO_BUILD_COMMIT")).filter(|commit| !commit.is_empty()),
        target: env!("HILO_BUILD_TARGET"),
        profile: env!("HILO_BUILD_PROFILE"),
        features: env!("HILO_BUILD_FEATURES"),
    }
}

/// Returns the text of `--version`: the version, then a line for each other fact.
pub(crate) fn page() -> String {
    let Build { version, id, commit, target, profile, features } = build();
    let commit = commit.unwrap_or("unknown");
    format!(
        "text-generation-launcher {version}\nbuild: {id}\ncommit: {commit}\ntarget: {target}\nprofile: {profile}\n\
         features: {features}\n"
    )
}
