//! svcforge: parse and go.

fn main() -> std::process::ExitCode {
    svcforge::cli::run()
}
