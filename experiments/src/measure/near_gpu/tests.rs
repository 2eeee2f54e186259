//! What lies near a GPU of a described host, and processes that are bound to cores.

use super::*;
use std::os::unix::fs::symlink;

const UUID: [u8; 16] = [0xab; 16];

/// A host with a GPU behind a switch with one of two NICs.
fn host(cores: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let (bus, gpus) = ("sys/devices/pci0000:15/0000:15:01.0", "proc/driver/nvidia/gpus/0000:17:00.0");
    let at = |path: &str| root.path().join(path);
    let gpu = format!("{bus}/0000:16:00.0/0000:17:00.0");
    for folder in [
        gpus,
        &gpu,
        "sys/bus/pci/devices",
        &format!("{bus}/0000:16:01.0/0000:18:00.0"),
        "sys/devices/pci0000:15/0000:15:05.0",
        "sys/devices/pci0000:80/0000:80:01.0",
    ] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    let information = "Model: \t NVIDIA H100\nGPU UUID: \t GPU-abababab-abab-abab-abab-abababababab\n";
    fs::write(at(gpus).join("information"), information).unwrap();
    fs::write(at(&gpu).join("local_cpulist"), format!("{cores}\n")).unwrap();
    fs::write(at(&gpu).join("numa_node"), "1\n").unwrap();
    symlink(at(&gpu), at("sys/bus/pci/devices/0000:17:00.0")).unwrap();
    for (nic, device) in [
        ("mlx5_0", "sys/devices/pci0000:80/0000:80:01.0"),
        ("mlx5_1", "sys/devices/pci0000:15/0000:15:05.0"),
        ("mlx5_2", &format!("{bus}/0000:16:01.0/0000:18:00.0")),
    ] {
        fs::create_dir_all(at(&format!("sys/class/infiniband/{nic}"))).unwrap();
        symlink(at(device), at(&format!("sys/class/infiniband/{nic}/device"))).unwrap();
    }
    root
}

#[test]
fn cores_memory_and_the_nearest_nic_of_a_gpu_are_found() {
    let root = host("0-31,64-95");
    let found = place(root.path(), UUID).unwrap();
    let wanted = GpuPlace {
        address: "0000:17:00.0".into(),
        cores: "0-31,64-95".into(),
        node: Some(1),
        nic: Some("mlx5_2".into()),
    };
    assert_eq!((found, place(root.path(), [0; 16])), (wanted, None));
    let at = |path: &str| root.path().join(path);
    fs::remove_dir_all(at("sys/class/infiniband/mlx5_2")).unwrap();
    assert_eq!(place(root.path(), UUID).unwrap().nic.as_deref(), Some("mlx5_1"));
    fs::remove_dir_all(at("sys/class/infiniband/mlx5_1")).unwrap();
    assert_eq!(place(root.path(), UUID).unwrap().nic, None, "it is behind another root");
}

#[test]
fn a_process_is_bound_to_cores_that_it_may_use() {
    let before = sched_getaffinity(None).unwrap();
    let said = bind(host("0-1023").path(), UUID).unwrap();
    assert_eq!(said, format!("bound to {} of the cores 0-1023 near its GPU 0000:17:00.0", before.count()));
    assert_eq!(sched_getaffinity(None).unwrap(), before);
    let said = bind(host("1023").path(), UUID).unwrap();
    assert!(said.starts_with("not bound: the process may use none of the cores 1023"), "{said}");
    let first = (0..CpuSet::MAX_CPU).find(|core| before.is_set(*core)).unwrap();
    let other = std::thread::scope(|scope| {
        let _ = scope.spawn(|| bind(host(&first.to_string()).path(), UUID)).join();
        sched_getaffinity(None).unwrap()
    });
    assert_eq!((other.count(), other.is_set(first)), (1, true), "all threads of the process are bound");
    let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
    for id in threads.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)) {
        let _ = sched_setaffinity(Some(id), &before);
    }
}

#[test]
fn lists_of_cores_are_read() {
    assert_eq!(numbers("0-2,8"), Some(vec![0, 1, 2, 8]));
    assert_eq!((numbers(""), numbers("a-b")), (None, None));
}
