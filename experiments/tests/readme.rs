//! What the README shows is what the command prints.

#[test]
fn the_examples_in_the_readme_print_what_it_says() {
    trycmd::TestCases::new().case("../README.md").case("../docs/*.md");
}
