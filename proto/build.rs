//! Compiles `hilo.proto` with protox, a protobuf compiler written in Rust, so that `protoc` need not be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=hilo.proto");
    let descriptors = protox::compile(["hilo.proto"], ["."])?;
    // These fields are boxed because a step has many rows, and most rows lack them; the last one because most replies
    // are much smaller.
    let mut config = prost_build::Config::new();
    for field in ["Row.opening", "RowReply.logprobs", "SampledToken.top_tokens", "Reply.kind.info"] {
        config.boxed(field);
    }
    config.compile_fds(descriptors)?;
    Ok(())
}
