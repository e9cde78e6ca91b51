//! Traces of requests: what is read, what is written.
//!
//! A trace is text, a line of JSON for each request: `{"timestamp": 1500, "hash_ids": [0, 7, 8]}`. The time is in milliseconds and never goes
//! back; `hash_ids` are the numbers of the request's blocks in their order, where a number stands for a block *and all before
//! it*. Other fields are passed over. A file whose name ends in `.gz` is compressed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use crate::exit::Failure;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Request {
    /// When it came, in milliseconds.
    #[serde(rename = "timestamp")]
    pub at_ms: u64,
    /// Its blocks from the first on.
    #[serde(rename = "hash_ids")]
    pub blocks: Vec<u64>,
}

/// Reads a whole trace.
///
/// # Errors
/// A file that can't be read, or a line that is no request, with its number; time that goes back.
pub fn read(path: &Path) -> Result<Vec<Request>, Failure> {
    let failure = |source| Failure::File { path: path.display().to_string(), source };
    let file = BufReader::new(File::open(path).map_err(failure)?);
    let is_compressed = path.extension().is_some_and(|extension| extension == "gz");
    let requests = if is_compressed { parse(BufReader::new(MultiGzDecoder::new(file))) } else { parse(file) };
    requests.map_err(failure)
}

fn parse(lines: impl BufRead) -> io::Result<Vec<Request>> {
    let mut requests: Vec<Request> = Vec::new();
    for (index, line) in lines.lines().enumerate() {
        let wrong =
            |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("line {}: {why}", index + 1));
        let line = line.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => {
                wrong("this is no text; a trace has a line of JSON for each request, and a compressed one a name that ends in .gz".to_owned())
            }
            _ => error,
        })?;
        if line.trim().is_empty() {
            continue;
        }
        let request: Request = serde_json::from_str(&line).map_err(|error| wrong(error.to_string()))?;
        if requests.last().is_some_and(|last| last.at_ms > request.at_ms) {
            return Err(wrong("its time is before that of the line before".to_owned()));
        }
        requests.push(request);
    }
    Ok(requests)
}

/// Writes a trace.
///
/// # Errors
/// A file that can't be written.
pub fn write(path: &Path, requests: &[Request]) -> Result<(), Failure> {
    let failure = |source| Failure::File { path: path.display().to_string(), source };
    let file = BufWriter::new(File::create(path).map_err(failure)?);
    let is_compressed = path.extension().is_some_and(|extension| extension == "gz");
    let written = if is_compressed {
        let mut output = GzEncoder::new(file, Compression::default());
        write_lines(&mut output, requests).and_then(|()| output.finish()?.flush())
    } else {
        let mut output = file;
        write_lines(&mut output, requests).and_then(|()| output.flush())
    };
    written.map_err(failure)
}

fn write_lines(output: &mut impl Write, requests: &[Request]) -> io::Result<()> {
    for request in requests {
        serde_json::to_writer(&mut *output, request)?;
        writeln!(output)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that a trace is read as it was written, compressed or not.
    #[test]
    fn traces_are_read_as_written() {
        let requests =
            vec![Request { at_ms: 0, blocks: vec![1, 2, 3] }, Request { at_ms: 7, blocks: vec![1] }];
        for name in ["trace.jsonl", "trace.jsonl.gz"] {
            let path = std::env::temp_dir().join(format!("lanner-{}-{name}", std::process::id()));
            write(&path, &requests).expect("written");
            assert_eq!(read(&path).expect("read"), requests);
            std::fs::remove_file(&path).expect("removed");
        }
    }

    /// Shows that other fields are passed over, and that what is wrong is named with its line.
    #[test]
    fn wrong_lines_are_named() {
        let good = r#"{"timestamp": 5, "input_length": 9, "hash_ids": [1]}"#;
        assert_eq!(parse(good.as_bytes()).expect("read"), [Request { at_ms: 5, blocks: vec![1] }]);
        for bad in ["{}", "x", r#"{"timestamp": 4, "hash_ids": []}"#, r#"{"timestamp": 6, "hash_ids": [-1]}"#]
        {
            let error = parse(format!("{good}\n\n{bad}\n").as_bytes()).expect_err(bad);
            assert!(error.to_string().starts_with("line 3: "), "{error}");
        }
    }
}
