//! Reads the TOML file of `--config`. A key that nothing knows is refused, with its line: a mistyped setting that is silently
//! ignored costs an evening.

use std::fs;
use std::path::Path;

use super::ConfigError;
use super::settings::Settings;

/// The settings in the file.
///
/// # Errors
/// [`ConfigError::UnreadableFile`] or [`ConfigError::File`].
pub fn read(path: &Path) -> Result<Settings, ConfigError> {
    let text = fs::read_to_string(path)
        .map_err(|source| ConfigError::UnreadableFile { path: path.to_owned(), source })?;
    parse(path, &text)
}

/// The settings in `text`, which stands in `path`.
///
/// # Errors
/// [`ConfigError::File`].
pub fn parse(path: &Path, text: &str) -> Result<Settings, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
        let problem = error.message().lines().map(str::trim).collect::<Vec<_>>().join("; ");
        ConfigError::File { path: path.to_owned(), line, problem }
    })
}
