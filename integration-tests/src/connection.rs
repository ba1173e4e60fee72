//! A raw TCP connection, on which tests send bytes that no HTTP client would send.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};

use crate::End;

/// The time after which a thread that waits for the connection checks if the end has come.
const TICK: Duration = Duration::from_millis(100);
/// The size of the receive buffer of a client that reads slowly or not at all. With the system's default size, the
/// kernel would accept megabytes for the client.
const SMALL_BUFFER_BYTES: usize = 4096;

/// A TCP connection to the server.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
}

impl Connection {
    /// Connects to `address`, with a small receive buffer if `has_small_buffer`.
    ///
    /// # Errors
    /// When the connection cannot be made.
    pub fn open(address: SocketAddr, has_small_buffer: bool) -> std::io::Result<Self> {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        if has_small_buffer {
            sockopt::set_socket_recv_buffer_size(&socket, SMALL_BUFFER_BYTES)?;
        }
        connect(&socket, &address)?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(TICK))?;
        stream.set_write_timeout(Some(TICK))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream })
    }

    /// Sends `bytes`, but stops when `end` has come.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn send(&mut self, mut bytes: &[u8], end: &End) -> std::io::Result<()> {
        while !bytes.is_empty() && !end.is_set() {
            match self.stream.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(len) => bytes = &bytes[len..],
                Err(error) if is_tick(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads until the server closes the connection or the end comes.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn read_all(&mut self, end: &End) -> std::io::Result<()> {
        let mut buffer = vec![0; 1 << 16];
        while !end.is_set() && self.read_once(&mut buffer)? {}
        Ok(())
    }

    /// Reads at most `bytes_per_second` until the server closes the connection or the end comes.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn read_slowly(&mut self, bytes_per_second: usize, end: &End) -> std::io::Result<()> {
        let ticks_per_second = Duration::from_secs(1).as_millis() / TICK.as_millis();
        let mut buffer = vec![0; bytes_per_second / ticks_per_second as usize];
        while !end.wait(TICK) && self.read_once(&mut buffer)? {}
        Ok(())
    }

    /// Reads bytes that arrive within [`TICK`]. Returns false if the server has closed the connection.
    fn read_once(&mut self, buffer: &mut [u8]) -> std::io::Result<bool> {
        match self.stream.read(buffer) {
            Err(error) if is_tick(&error) => Ok(true),
            read => read.map(|len| len > 0),
        }
    }
}

/// The head of a POST request with a body of `len` bytes of JSON, including the blank line.
pub fn request_head(path: &str, len: usize, api_key: Option<&str>) -> String {
    let key = api_key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {len}\r\n{key}\r\n"
    )
}

fn is_tick(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
