#![no_main]
libfuzzer_sys::fuzz_target!(|text: &[u8]| allfold_parsers::run("nccl_log", text));
