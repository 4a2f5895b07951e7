//! Generates messages and stubs of the repository's protos. Needs protoc.

fn main() -> std::io::Result<()> {
    tonic_prost_build::configure()
        .build_server(false)
        .compile_protos(
            &["tandem/v1/generation.proto", "tandem/v1/models.proto"],
            &["../../../proto"],
        )
}
