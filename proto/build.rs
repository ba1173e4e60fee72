//! Compiles `hilo.proto` with protox (a protobuf compiler in Rust), so that no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=hilo.proto");
    let descriptors = protox::compile(["hilo.proto"], ["."])?;
    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
