//! Bad input: exit code 2, one line on standard error that says what would be right, and no file left behind.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{allfold, folder, records, refused, says};
use std::fs;

const CNN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-cnn.toml");

#[test]
fn a_wrong_command_or_flag() {
    says(&["reprot"], &["report"]);
    says(&["xyzzy"], &["verify, show, bench"]);
    says(&["doctor", "--jsn", "x"], &["--json"]);
    says(&["bench", "all_reduce", "--ranks", "4"], &["--backend"]);
    says(&["bench", "all_reduce", "--backend", "thread", "--ranks", "4"], &["threads"]);
    says(&["bench", "all_reduce", "--backend", "threads", "--ranks", "2", "-c", "7"], &["7", "0..=1"]);
}

#[test]
fn an_unknown_name_is_told_the_nearest() {
    says(
        &["show", "allreduce", "--algo", "ring", "--ranks", "4"],
        &["`allreduce`", "did you mean `all_reduce`"],
    );
    says(&["show", "all_reduce", "--algo", "rnig", "--ranks", "4"], &["`rnig`", "did you mean `ring`"]);
    says(&["verify", "--algo", "halving_dubling"], &["did you mean `halving_doubling`"]);
    let simulate = ["simulate", "all_reduce", "--ranks", "4", "--topology"];
    says(&[&simulate[..], &["swich"]].concat(), &["`swich`", "switch"]);
    says(&[&simulate[..], &["switch", "-d", "flot"]].concat(), &["did you mean `float`"]);
    for misspelt in ["ncll", "NCCL", "ring,nccll"] {
        says(&[&simulate[..], &["switch", "--algo", misspelt]].concat(), &["did you mean `nccl`", "ring"]);
    }
    // NCCL has no scatter of its own.
    let scatter = ["simulate", "scatter", "--ranks", "4", "--topology", "switch", "--algo", "ncll"];
    says(&scatter, &["no algorithm of scatter is called `ncll` (there are "]);
    says(&[&simulate[..], &["switch", "-o", "summ"]].concat(), &["did you mean `sum`"]);
    says(&[&simulate[..], &["switch", "--fault", "slow_rnk=1:x2"]].concat(), &["slow_rank"]);
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-cnn.toml");
    says(&["train", "--config", config, "--backend", "sim", "--device", "a1000"], &["a100"]);
    says(&["train", "--config", config, "--strategy", "dpd"], &["ddp"]);
    says(&["train", "--config", config, "--set", "bach=4"], &["--set bach=4", "`training.batch`"]);
    says(&["train", "--config", config, "--set", "lr"], &["KEY=VALUE"]);
    says(&["train", "--config", config, "--set", "training.batch=few"], &["batch`", "whole number"]);
}

#[test]
fn ranks_and_roots_that_cannot_be() {
    says(&["show", "all_reduce", "--algo", "ring", "--ranks", "0"], &["zero ranks", "1 or more"]);
    says(&["verify", "--ranks", "0..4"], &["zero ranks"]);
    says(&["verify", "--ranks", "9..4"], &["backwards"]);
    says(&["show", "broadcast", "--algo", "chain", "--ranks", "4", "--root", "4"], &["root 4", "0 to 3"]);
    says(
        &["bench", "reduce", "--backend", "threads", "--ranks", "2", "-r", "2", "-b", "8"],
        &["root 2", "0 to 1"],
    );
    let slow =
        ["simulate", "all_reduce", "--topology", "switch", "--ranks", "4", "--fault", "slow_rank=4:x2"];
    says(&slow, &["rank 4", "0 to 3"]);
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-cnn.toml");
    says(&["train", "--config", config, "--strategy", "single", "--ranks", "2"], &["ddp"]);
}

#[test]
fn sizes_that_cannot_be() {
    let simulate = ["simulate", "all_reduce", "--topology", "switch", "--ranks", "4"];
    let with = |more: &[&'static str]| [&simulate[..], more].concat();
    says(&with(&["-b", "12Q"]), &["`12Q`", "64K"]);
    says(&with(&["-b", "99999999999999999999"]), &["overflows 64 bits"]);
    says(&with(&["-b", "16384P"]), &["overflows 64 bits"]);
    says(&with(&["-b", "16000P", "-e", "16000P"]), &["take a smaller size"]);
    says(&with(&["-b", "8", "-e", "4"]), &["-b 8 is more than -e 4"]);
    says(&with(&["-b", "8", "-e", "64", "-f", "1"]), &["2 or more"]);
    says(&with(&["-b", "8", "--segment", "0"]), &["1 byte or more"]);
    says(&with(&["-b", "8", "--window", "0"]), &["1..="]);
    let bench = ["bench", "all_reduce", "--backend", "threads", "--ranks", "4", "-b", "900T", "-e", "900T"];
    says(&bench, &["memory", "available"]);
}

#[test]
fn a_number_that_is_none_says_so() {
    let simulate = ["simulate", "all_reduce", "--topology", "switch", "--ranks"];
    let with = |more: &[&'static str]| [&simulate[..], more].concat();
    says(&with(&["-1"]), &["`-1` is less than 0"]);
    says(&with(&["4", "-b", "-8"]), &["`-8` is less than 0"]);
    says(&with(&["4", "-b", "8", "-f", "x"]), &["'-f <FACTOR>'", "whole number"]);
    says(&with(&["4", "-b", "8", "-f", "99999999999999999999"]), &["too large"]);
    says(&with(&["4", "-b", "8", "-f", ""]), &["whole number"]);
}

#[test]
fn flags_of_the_virtual_clock_are_refused_without_it() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-cnn.toml");
    let train = ["train", "--config", config];
    says(&[&train[..], &["--topology", "nodes8"]].concat(), &["--topology", "--backend sim"]);
    says(&[&train[..], &["--device", "h100"]].concat(), &["--device", "--backend sim"]);
    let bench = ["bench", "all_reduce", "--backend", "threads", "--ranks", "2", "--topology", "nodes8"];
    says(&bench, &["--topology", "--backend sim"]);
}

/// Settings that have no effect beside the other settings, and settings that exclude each other.
#[test]
fn settings_that_do_nothing_or_contradict_each_other() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-cnn.toml");
    let rows: [(&[&str], &str); 19] = [
        (&["strategy=single", "ddp.hook=fp16"], "`ddp.hook` is for ddp"),
        (&["strategy=single", "ddp.groups=['conv']"], "`ddp.groups` are ddp's"),
        (&["strategy=single", "ddp.broadcast_buffers=true"], "`ddp.broadcast_buffers` is for ddp"),
        (&["data.uneven=true", "data.drop_last=true"], "`data.drop_last`"),
        (&["ddp.find_unused=true", "ddp.static_graph=true"], "`ddp.static_graph`"),
        (&["optimiser.nesterov=true", "optimiser.momentum=0"], "`optimiser.momentum` above 0"),
        (&["optimiser.nesterov=true", "optimiser.name=adam"], "optimiser `sgd`"),
        (&["lr_schedule.milestones=[3]"], "needs `lr_schedule.name = \"milestones\"`"),
        (&["lr_schedule.name=milestones"], "needs `lr_schedule.milestones`"),
        (&["model.dropout=0.1"], "models `gpt` and `bert`"),
        (&["model.imagenet_stem=true"], "`model.imagenet_stem` is for resnets"),
        (&["checkpoint.keep=0"], "`checkpoint.keep` is 0"),
        (&["training.min_delta=0.1"], "`training.min_delta` is for `training.patience`"),
        (&["training.patience=-1"], "`-1`"),
        (&["training.score=acuracy"], "unknown value `acuracy`; the nearest is `accuracy`"),
        (&["lr_schedule.name=plateau", "lr_schedule.factor=1"], "`plateau` needs less than 1"),
        (
            &["precision.loss_scale=8", "precision.scale_floor=16"],
            "above the first scale, `precision.loss_scale` = 8",
        ),
        (&["ddp.groups=['fcc']"], "unknown group of parameters `fcc`; the nearest is `fc`"),
        (&["model.sync_batch_norm=true", "model.batch_norm=false"], "is for batch norms"),
    ];
    for (set, hint) in rows {
        let set = set.iter().flat_map(|set| ["--set", set]);
        let train: Vec<&str> = ["train", "--config", config].into_iter().chain(set).collect();
        says(&train, &[hint]);
    }
}

/// Errors that a retry cannot mend have the exit code of usage errors, so that no launcher starts the run again.
#[test]
fn data_devices_and_folders_that_do_not_fit() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("text.txt"), "to be or not to be ".repeat(1_000)).unwrap();
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-cnn.toml");
    let train = |set: &[&str], hint: &str| {
        let set = set.iter().flat_map(|set| ["--set", set]);
        let train = ["train", "--config", config, "--steps", "2"].into_iter().chain(set);
        says(&train.collect::<Vec<_>>(), &[hint]);
    };
    train(&["model.name=gpt"], "a gpt needs one for each position");
    train(
        &["model.name=mlp", "data.name=text", &format!("data.dir={}", path(""))],
        "a gpt needs one for each position",
    );
    train(
        &["data.name=mnist", "data.dir=no/such"],
        "`python3 -m allfold.fetch mnist --dir no/such` brings it",
    );
    train(&["data.name=synthetic", "data.synthetic_samples=0"], "`data.synthetic_samples` is 0");
    train(&["model.name=resnet18", "training.batch=1"], "1 value per channel");
    let events = path("text.txt/events");
    says(&["train", "--config", config, "--steps", "2", "--tensorboard", &events], &["text.txt", "folder"]);
    if fs::exists("/dev/nvidiactl").unwrap() {
        println!("SKIP: there is a GPU driver");
    } else {
        train(&["device=cuda"], "is missing");
    }
}

#[test]
fn traces_of_steps_that_a_run_does_not_make() {
    let folder = folder();
    let path = folder.path().join("trace.json").display().to_string();
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-cnn.toml");
    let train = ["train", "--config", config, "--trace-step"];
    let with = |more: &[&'static str]| [&train[..], more, &["--trace", &path]].concat();
    says(&with(&["3", "--steps", "3"]), &["--trace-step is 3", "3 steps, counted from 0"]);
    // 1,437 samples for one rank, in batches of 16.
    let short = ["90", "--set", "training.epochs=1", "--set", "training.batch=16"];
    says(&with(&short), &["--trace-step is 90", "90 steps"]);
    says(&with(&["0", "--backend", "sim"]), &["leave --trace-step out"]);
    says(&[&train[..], &["0"]].concat(), &["--trace"]);
    let profile = |more: &[&'static str]| {
        [&["train", "--config", config, "--steps", "3", "--profile", &path, "--profile-schedule"], more]
            .concat()
    };
    says(&profile(&["wait=2,warmup=1"]), &["--profile-schedule records none of the 3 steps"]);
    says(&profile(&["active=0"]), &["`active` is 0", "set it to 1 or more"]);
    says(&profile(&["always=1"]), &["`always` is none of skip, wait, warmup, active and repeat"]);
    says(&profile(&["active=1", "--device", "cuda"]), &["--profile times the layers on the CPU"]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was written");
}

#[test]
fn devices_that_ranks_do_not_have() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-cnn.toml");
    let devices = |more: &[&'static str]| [&["train", "--config", config, "--ranks", "2"], more].concat();
    says(&devices(&["--share-by-speed"]), &["--share-by-speed needs unlike devices", "cuda:0,cpu"]);
    says(&devices(&["--device", "cpu,cpu,cpu"]), &["`device` names 3 devices and there are 2 ranks"]);
    says(&devices(&["--device", "gpu"]), &["unknown device `gpu`; here it is `cuda`"]);
    says(&devices(&["--device", "cpu,gpu"]), &["unknown device `gpu`; here it is `cuda`"]);
    for device in ["mps", "cpu,mps:0", "xpu"] {
        says(&devices(&["--device", device]), &["is not supported; use `cpu`, or `cuda` for GPUs of NVIDIA"]);
    }
    for (name, ours) in [("pp", "pipeline"), ("tp", "tensor"), ("fsdp", "zero3"), ("zero", "zero2")] {
        let hints = [format!("unknown strategy `{name}`; here it is called `"), format!("`{ours}`")];
        says(&devices(&["--strategy", name]), &hints.each_ref().map(String::as_str));
    }
    says(&devices(&["--set", "precision.amp=true"]), &["expected a word in quotes, as in amp = \"bf16\""]);
    says(
        &devices(&["--set", "data.name=ImageFolder"]),
        &["unknown data `ImageFolder`; here it is `pictures`"],
    );
    says(&devices(&["--device", "cpu,cuda:x"]), &["after `cuda:` comes the number of a GPU"]);
    says(&devices(&["--device", "cuda,cpu", "--strategy", "zero1"]), &["`strategy` is zero1", "needs ddp"]);
}

#[test]
fn more_ranks_than_memory_holds() {
    let many = "ulimit -v 200000; exec \"$0\" simulate all_reduce --topology switch --ranks 1048576 -b 8 -e 8 --engine full";
    let output =
        std::process::Command::new("sh").args(["-c", many, env!("CARGO_BIN_EXE_allfold")]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("clocks of 1048576 ranks need 0.2 GiB of memory"), "{said}");
}

/// `ulimit -v` is a limit on memory as well.
#[test]
fn more_ranks_than_the_process_may_hold() {
    let bench = "ulimit -v 1000000; exec \"$1\" bench all_reduce --backend shm --ranks 4 -b 64M -e 64M";
    let mut command = std::process::Command::new("sh");
    let output = command.args(["-c", bench, "sh", env!("CARGO_BIN_EXE_allfold")]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("GiB of memory and") && said.lines().count() == 1, "{said}");
}

#[test]
fn curves_that_cannot_be_what_they_say() {
    let folder = folder();
    let scale = |name: &str, text: &str| {
        let path = folder.path().join(name).display().to_string();
        fs::write(&path, text).unwrap();
        refused(&["scale", "--config", &path, "--ranks", "2", "--steps", "1"])
    };
    let single = scale("single.toml", "strategy = \"single\"\n");
    assert!(single.contains("trains on 1 rank and has no scaling curve"), "{single}");
}

#[test]
fn an_engine_that_refuses_leaves_no_half_table() {
    let words = ["simulate", "all_reduce", "--topology", "switch", "--ranks", "7", "--algo", "ring"];
    let output = allfold(&[&words[..], &["--engine", "by_symmetry", "-b", "1M", "-e", "1M"]].concat());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
}

#[cfg(unix)]
#[test]
fn serial_links_are_a_way_to_share_and_no_engine() {
    let tree =
        ["simulate", "all_reduce", "--topology", "switch", "--ranks", "8", "--algo", "double_binary_tree"];
    let with = |more: &[&'static str]| [&tree[..], more].concat();
    says(
        &with(&["--sharing", "serial_links", "--engine", "by_symmetry"]),
        &["engine `auto` or `full`", "`split`"],
    );
    says(&with(&["--sharing", "serial_links", "--explain", "-b", "8", "-e", "8"]), &["without a trace"]);
}

#[test]
fn arguments_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt;
    let folder = folder();
    let path = folder.path().join(std::ffi::OsStr::from_bytes(b"runs-\xff.jsonl"));
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_allfold"));
    let output = command.args(["verify", "barrier", "--ranks", "2", "--json"]).arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(fs::read_to_string(&path).unwrap().contains("\"kind\":\"verify\""));
}

#[test]
fn files_that_cannot_be_read_name_line_and_column() {
    let folder = folder();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    says(&["train", "--config", &file("a.toml", "seed = 2\nthreads = = 1\n")], &["a.toml:2:11"]);
    says(&["train", "--config", &file("b.toml", "seed = 2\nbach = 4\n")], &["b.toml:2:1", "training.batch"]);
    says(&["train", "--config", "no/such.toml"], &["no/such.toml", "name a TOML file"]);
    says(&["report", "--from", &file("c.jsonl", "{}\n")], &["c.jsonl", "line 1"]);
    says(&["report", "--from", "no/such.jsonl"], &["no/such.jsonl"]);
    let topology = file("t.toml", "kind = \"switch\"\nranks = = 4\n");
    says(&["simulate", "all_reduce", "--ranks", "4", "--topology", &topology], &["t.toml:2:9"]);
    let (run, cut) = (file("d.toml", "training.max_steps = 1\n"), file("e.safetensors", "cut"));
    for (path, why) in [("no/such.safetensors", "No such file"), (&cut, "ends at byte 3")] {
        let set = format!("model.weights={path}");
        says(&["train", "--config", &run, "--set", &set], &[path, why]);
    }
}

/// An endless device and a sparse file of 1 GiB, given to flags that name a file: the command refuses them within 512 MiB of
/// address space, and names the greatest length that the file may have, or for weights and checkpoints what the header describes.
#[test]
fn files_larger_than_what_they_should_be_are_refused_before_they_are_read() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (zeros, sparse) = (path("zeros"), path("sparse"));
    for ending in ["", ".toml", ".json", ".xml"] {
        std::os::unix::fs::symlink("/dev/zero", format!("{zeros}{ending}")).unwrap();
        fs::File::create(format!("{sparse}{ending}")).unwrap().set_len(1 << 30).unwrap();
    }
    fs::create_dir(path("checkpoints")).unwrap();
    let checkpoint = path("checkpoints/step-00000002.safetensors");
    let resumed = format!("checkpoint.dir={}", path("checkpoints"));
    for file in [&zeros, &sparse] {
        let _ = fs::remove_file(&checkpoint);
        fs::rename(file, path("now")).unwrap();
        std::os::unix::fs::symlink(path("now"), &checkpoint).unwrap();
        let [toml, json, xml] = ["toml", "json", "xml"].map(|ending| format!("{file}.{ending}"));
        let (now, weights) = (path("now"), format!("model.weights={}", path("now")));
        let simulate = ["simulate", "all_reduce", "--ranks", "8", "-b", "1K", "-e", "1K", "--topology"];
        let train = ["train", "--config", CNN, "--set"];
        let (run, unlike) = match *file == zeros {
            true => ("a measured run may have 16 MiB", "is no regular file"),
            false => (":1:1: is no text in UTF-8", "is neither a safetensors file nor"),
        };
        for (args, says) in [
            (vec!["validate", &now], run),
            (vec!["calibrate", "--out", "o.toml", &now], run),
            (vec!["validate", "--parameters", &toml, &now], "a file of parameters may have 1 MiB"),
            ([&simulate[..], &[&toml]].concat(), "a topology may have 1 MiB"),
            ([&simulate[..], &[&xml]].concat(), "a description of a machine may have 16 MiB"),
            ([&simulate[..], &[&json, "--algo", "nccl"]].concat(), "a machine's description may have 1 MiB"),
            (vec!["train", "--config", &toml], "a configuration may have 1 MiB"),
            ([&train[..], &[&weights]].concat(), unlike),
            ([&train[..], &["checkpoint.resume=true", "--set", &resumed]].concat(), "its header describes"),
            (
                vec!["train", "--config", CNN, "--plot", "p.svg", "--compare", &now],
                "a file of losses may have 16 MiB",
            ),
            (vec!["report", "--from", &now], "a file of records may have"),
            (vec!["triage", &now], "a dump may have"),
        ] {
            let limited = ["-c", "ulimit -v 524288; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_allfold")];
            let mut command = std::process::Command::new("sh");
            let output = command.args(limited).args(&args).current_dir(folder.path()).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
            assert!(said.contains(says) && said.lines().count() == 1, "{args:?}: {said}");
        }
    }
}

#[test]
fn what_fails_leaves_no_file() {
    let folder = folder();
    let json = folder.path().join("out.jsonl");
    let json = json.to_str().unwrap();
    refused(&["show", "broadcast", "--algo", "chain", "--ranks", "4", "--root", "9", "--json", json]);
    refused(&["simulate", "all_reduce", "--topology", "swich", "--ranks", "4", "--json", json]);
    refused(&["bench", "all_reduce", "--backend", "threads", "--ranks", "2", "-b", "900T", "--json", json]);
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-cnn.toml");
    refused(&["train", "--config", config, "--ranks", "2", "--topology", "nodes8", "--trace", json]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was written");
    says(&["report", "--from", "-", "--out", json], &["name files of records"]);
    says(&["scale", "--config", config, "--ranks", "1", "--html", "-"], &["standard output", "name a file"]);
    says(&["doctor", "--json", folder.path().to_str().unwrap()], &["folder", "name a file"]);
    says(&["doctor", "--json", "no/such/folder/x"], &["folder that exists"]);
}

#[test]
fn a_reader_that_closes_early_is_no_panic() {
    let script = format!("'{}' verify --ranks 1..4 | head -n 1", env!("CARGO_BIN_EXE_allfold"));
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors, "", "a closed pipe is nothing to tell");
}

/// Runs a command whose standard output is closed.
fn unread(args: &[&str]) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_allfold"));
    let output = command.args(args).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(141), &b""[..]), "{args:?}");
}

#[test]
fn files_are_written_though_nobody_reads_the_text() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let (records, trace, html) = (path("runs.jsonl"), path("trace.json"), path("scaling.html"));
    unread(&["verify", "barrier", "--ranks", "1..4", "--json", &records]);
    let kept = fs::read_to_string(&records).unwrap();
    unread(&["verify", "barrier", "--ranks", "1..4"]);
    let whole = allfold(&["verify", "barrier", "--ranks", "1..4", "--json", "-"]).stdout;
    assert_eq!(kept.lines().count(), String::from_utf8(whole).unwrap().lines().count());
    let simulate = ["simulate", "all_reduce", "--topology", "switch", "--ranks", "4", "-b", "8", "-e", "8"];
    unread(&[&simulate[..], &["--trace", &trace]].concat());
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-cnn.toml");
    unread(&["scale", "--config", config, "--ranks", "2", "--modeled-only", "--html", &html]);
    for file in [trace, html] {
        assert!(fs::metadata(&file).unwrap().len() > 0, "{file}");
    }
}

#[test]
fn a_folder_of_checkpoints_that_cannot_be_is_found_before_the_first_step() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-cnn.toml");
    let within = format!("checkpoint.dir={}", file.join("within").display());
    let set = ["--set", "checkpoint.every=2", "--set", &within];
    says(&[&["train", "--config", config, "--steps", "2"], &set[..]].concat(), &["file/within", "folder"]);
}

#[test]
fn flags_of_another_kind_of_curve() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-cnn.toml");
    let scale = ["scale", "--config", config, "--ranks", "1", "--modeled-only"];
    says(&[&scale[..], &["--batch", "64"]].concat(), &["unexpected argument '--batch'"]);
    let collective = ["scale", "collective", "all_reduce", "--algo", "ring", "--ranks", "2"];
    says(&[&collective[..], &["--html", "x"]].concat(), &["unexpected argument '--html'"]);
    says(&["scale"], &["--config <FILE>", "--ranks <COUNTS>"]);
}

/// The virtual clock cannot time what a GPU computes; this is refused on machines without a GPU too.
#[test]
fn gpus_under_the_virtual_clock() {
    let folder = folder();
    let path = folder.path().join("gpu.toml").display().to_string();
    fs::write(&path, "device = \"cuda\"\n").unwrap();
    says(
        &["scale", "--config", &path, "--ranks", "1", "--steps", "1", "--sim-ranks", "2"],
        &["`device` is cuda", "leave --sim-ranks out"],
    );
}

/// A slow rank changes the times of a training run and no bit of its result; a dead rank is named.
#[test]
fn faults_of_a_simulated_training_run() {
    let train = |more: &[&'static str]| {
        let flags = ["train", "--config", CNN, "--ranks", "2", "--steps", "2", "--set", "data.validation=20"];
        [&flags[..], more].concat()
    };
    let last =
        |more: &[&'static str]| records(&train(&[&["--backend", "sim"][..], more].concat())).pop().unwrap();
    let (plain, slow) = (last(&[]), last(&["--fault", "slow_rank=1:x4"]));
    assert_eq!(plain["weights_hash"], slow["weights_hash"]);
    assert!(slow["time_us"].as_f64() > plain["time_us"].as_f64().map(|time| 2.0 * time));
    let dead = allfold(&train(&["--backend", "sim", "--fault", "dead_rank=1@50us"]));
    let said = String::from_utf8_lossy(&dead.stderr);
    assert!(dead.status.code() == Some(1) && said.contains("rank 1"), "{said}");
    says(
        &train(&["--fault", "slow_rank=1:x4"]),
        &["--fault describes the simulated machine", "--backend sim"],
    );
    says(&train(&["--backend", "sim", "--fault", "slow_rank=7:x4"]), &["slow_rank", "7"]);
    says(&train(&["--backend", "sim", "--fault", "slow=1"]), &["slow", "slow_rank"]);
}

#[test]
fn calls_that_nccl_does_not_run() {
    let nccl = |machine: &'static str, more: &[&'static str]| {
        let flags = ["simulate", "all_reduce", "--topology", machine, "--ranks", "16", "--algo", "nccl"];
        [&flags[..], more].concat()
    };
    says(&nccl("hgx-h100", &["--nccl-algo", "rnig"]), &["NCCL_ALGO", "did you mean `Ring`"]);
    says(&nccl("hgx-h100", &["--nccl-algo", "pat"]), &["no algorithm and protocol for all_reduce"]);
    says(&nccl("hgx-h100", &["--fault", "kill=rank[1]"]), &["--fault", "leave it out with --algo nccl"]);
    says(&nccl("hgx-h100:1", &[]), &["16 ranks are more than the 8 GPUs"]);
    says(&nccl("hgx-h100,fat-tree=2:1", &[]), &["no switches above them"]);
    says(&nccl("swich", &[]), &["no machine is called `swich`"]);
    says(&["simulate", "all_reduce", "--topology", "switch", "--ranks", "4", "--collnet"], &["--algo nccl"]);
}

#[test]
fn runs_that_cannot_be_validated() {
    let run = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/runs/v100x1_2n_p3dn_all_reduce.json");
    let text = fs::read_to_string(run).unwrap();
    let folder = folder();
    let written = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let cut = written("cut.json", &text[..text.len() / 2]);
    says(&["validate", &cut], &["cut.json:"]);
    let nobody = written("nobody.json", &text.replace("\"hardware\"", "\"hardwear\""));
    says(&["validate", &nobody], &["every run was left out: "]);
    says(&["validate", run, "--with-one-run"], &["two runs of one system or more"]);
    let wrong = written("wrong.toml", "[[parameter]]\nname = \"hopp\"\nvalue = 1.0\n");
    says(&["validate", run, "--parameters", &wrong], &["wrong.toml", "did you mean `hop`"]);
    let word = written("word.toml", "[[parameter]]\nname = \"hop\"\nvalue = \"much\"\n");
    says(&["validate", run, "--parameters", &word], &["word.toml", "line 3"]);
}
