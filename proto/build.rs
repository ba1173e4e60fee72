//! Compiles `hilo.proto` with protox (a protobuf compiler in Rust), so that no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=hilo.proto");
    let descriptors = protox::compile(["hilo.proto"], ["."])?;
    // Most rows have neither, and a step has many rows.
    prost_build::Config::new().boxed("Row.opening").boxed("RowReply.logprobs").compile_fds(descriptors)?;
    Ok(())
}
