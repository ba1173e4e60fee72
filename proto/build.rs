//! Compiles `hilo.proto` with protox (a protobuf compiler in Rust), so that no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=hilo.proto");
    let descriptors = protox::compile(["hilo.proto"], ["."])?;
    // These fields are boxed because a step has many rows, and most rows lack them.
    let mut config = prost_build::Config::new();
    for field in ["Row.opening", "RowReply.logprobs", "SampledToken.top_tokens"] {
        config.boxed(field);
    }
    config.compile_fds(descriptors)?;
    Ok(())
}
