#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| allfold_parsers::run("dumps", bytes));
