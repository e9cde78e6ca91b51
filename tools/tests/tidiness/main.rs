//! Tidiness as a test: reads every file of the repository and holds it against the rules in `rules.rs`. Each rule has
//! a planted fault there, so that a checker that has gone blind is noticed. What rustfmt and clippy can check is not here.

mod rules;

use std::fs;
use std::path::{Path, PathBuf};

/// Folders that hold nothing we wrote.
const NOT_OURS: &[&str] = &["target", "out", "node_modules", "__pycache__"];

/// Shows that no file of the repository breaks a rule, and lists every place that does.
#[test]
fn the_repository_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace");
    let files = files_below(root);
    assert!(files.len() > 10, "the walk found only {} files below {}", files.len(), root.display());

    let mut faults = Vec::new();
    for file in &files {
        let Ok(text) = fs::read_to_string(file) else { continue }; // not text: no rule applies
        let name = file.strip_prefix(root).expect("found below the root").to_string_lossy().into_owned();
        faults.extend(rules::faults_in(&name, &text));
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// Every file below `root`, without folders that are hidden (but for CI's) and what is not ours: of a second work tree `.git` is a file.
fn files_below(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue }; // removed while we walked
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Ok(kind) = entry.file_type() else { continue };
            let hidden = name.starts_with('.') && name != ".ci";
            if kind.is_dir() && !hidden && !NOT_OURS.contains(&name.as_str()) {
                folders.push(entry.path());
            } else if kind.is_file() && !name.ends_with(".swp") && name != ".git" {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    files
}
