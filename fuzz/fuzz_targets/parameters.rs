#![no_main]
libfuzzer_sys::fuzz_target!(|text: &[u8]| allfold_tests::parsers::run("parameters", text));
