//! Writes the result of a command to stdout.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Writes the result of a command to stdout, unchanged, and returns `status`. When stdout cannot be written, the error
/// goes to stderr, and the status is a failure. A closed pipe is not an error: its reader has seen enough.
pub fn print_result(result: &str, status: ExitCode) -> ExitCode {
    match write(&mut io::stdout().lock(), result) {
        Ok(()) => status,
        Err(error) => {
            let _ = writeln!(io::stderr().lock(), "error: stdout cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(out: &mut impl Write, result: &str) -> io::Result<()> {
    match out.write_all(result.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_reader_that_has_left_is_no_error_and_a_full_disk_is_one() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(write(&mut ours, "result").is_ok());
        let mut full = File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(write(&mut full, "result").unwrap_err().kind(), ErrorKind::StorageFull);
    }
}
