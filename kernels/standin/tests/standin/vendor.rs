//! Tests of products and convolutions by stand-ins for cuBLASLt and cuDNN, against Allfold's own kernels on the same device.

use crate::alone::{Found, alone, ensure, is_child, seeded};
use allfold_cuda::launch::{self, Conv, DeviceMatrix, ProductOutput, TensorLayout};
use allfold_cuda::libraries::CudaLibrary;
use allfold_cuda::vendor::{self, ConvProduct, Epilogue};
use allfold_cuda::{Gpu, Memory, Queue};
use allfold_kernels::{DType, bf16, f16};
use allfold_standin::{
    Convolutions, Nvrtc, Products, StandinOptions, standin_convolutions, standin_epilogues, standin_products,
};

fn both() -> StandinOptions {
    let (products, convolutions) = (Some(Products::default()), Some(Convolutions::default()));
    StandinOptions { products, convolutions, ..StandinOptions::default() }
}

/// Different values in units of an eighth, so that sums of a few products are exact in 16 bits too.
fn values(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|nth| ((nth * 7 + salt * 5) % 13) as f32 / 8.0 - 0.75).collect()
}

fn upload(queue: &Queue, dtype: DType, values: &[f32]) -> Result<Memory, allfold_cuda::Error> {
    match dtype {
        DType::F16 => queue.upload(&values.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>()),
        DType::Bf16 => queue.upload(&values.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>()),
        _ => queue.upload(values),
    }
}

fn download(queue: &Queue, dtype: DType, memory: &Memory) -> Result<Vec<f32>, allfold_cuda::Error> {
    Ok(match dtype {
        DType::F16 => queue.download::<f16>(memory.all())?.iter().map(|x| x.to_f32()).collect(),
        DType::Bf16 => queue.download::<bf16>(memory.all())?.iter().map(|x| x.to_f32()).collect(),
        _ => queue.download::<f32>(memory.all())?,
    })
}

fn near(what: &str, left: &[f32], right: &[f32]) -> Found {
    let wrong =
        left.iter().zip(right).position(|(l, r)| l.is_nan() || (l - r).abs() > 0.01 * (1.0 + r.abs()));
    ensure(
        wrong.is_none() && left.len() == right.len(),
        format!("{what}: value {wrong:?} is not the kernels'"),
    )
}

fn products(queue: &Queue) -> Found {
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        // The last two have matrices with rows of 257 elements, which are copied to aligned rows.
        for (m, n, k) in [(1, 1, 1), (3, 5, 2), (7, 4, 9), (256, 257, 2), (256, 2, 257)] {
            for (ta, tb, keep, biased) in [
                (false, false, 0.0, true),
                (true, false, 1.0, false),
                (false, true, 0.5, true),
                (true, true, 0.0, false),
            ] {
                let a = upload(queue, dtype, &values(m * k, 1))?;
                let b = upload(queue, dtype, &values(k * n, 2))?;
                let c = values(m * n, 3);
                let (by, own) = (upload(queue, dtype, &c)?, upload(queue, dtype, &c)?);
                // A bias may have the operands' type: then the library adds it in its own call.
                let is_f32 = ta || dtype == DType::F32 || keep == 0.0;
                let bias = upload(queue, if is_f32 { DType::F32 } else { dtype }, &values(n, 4))?;
                let bias = biased.then(|| bias.all());
                let left = DeviceMatrix::new(a.all(), [m, k], ta);
                let right = DeviceMatrix::new(b.all(), [k, n], tb);
                let [into, own_into] =
                    [&by, &own].map(|c| ProductOutput { data: c.all(), dtype, apart: 0, keep });
                vendor::matmul(queue, dtype, (left, right), into, bias)?;
                launch::matmul(queue, dtype, (left, right), own_into, bias)?;
                let what = format!("product {m} x {k} x {n}, {ta} {tb} {keep} {biased}, {dtype}");
                near(&what, &download(queue, dtype, &by)?, &download(queue, dtype, &own)?)?;
            }
        }
    }
    Ok(())
}

/// Products with epilogues and with rows apart, against the kernels'. `fused`: whether the library computes epilogues.
fn epilogues(queue: &Queue, fused: bool) -> Found {
    let (m, n, k) = (16, 24, 8);
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let (a, b) = (upload(queue, dtype, &values(m * k, 1))?, upload(queue, dtype, &values(k * n, 2))?);
        let (bias, kept) = (upload(queue, dtype, &values(n, 4))?, upload(queue, dtype, &values(m * n, 5))?);
        let memory = |count: usize, dtype: DType| queue.memory(count * dtype.size());
        let left = DeviceMatrix::new(a.all(), [m, k], true);
        let right = DeviceMatrix::new(b.all(), [k, n], false);
        for (number, wide) in [(0, false), (1, false), (2, false), (3, false), (3, true)] {
            let of = if wide { DType::F32 } else { dtype };
            let all = [memory(m * n, of)?, memory(m * n, of)?, memory(m * n, of)?, memory(m, DType::F32)?];
            let [by, own, before, sums] = &all;
            let epilogue = match number {
                0 => Epilogue::Gelu { bias: Some(bias.all()), before: before.all() },
                1 => Epilogue::Gelu { bias: None, before: before.all() },
                2 => Epilogue::GeluBack { before: kept.all() },
                _ => Epilogue::RowSums(sums.all()),
            };
            let calls = standin_products().0;
            vendor::product(queue, dtype, (left, right), ProductOutput::new(by.all(), of), epilogue)?;
            let what = format!("epilogue {number} of {dtype} to {of}");
            let shift = (number == 0).then(|| bias.all());
            launch::matmul(queue, dtype, (left, right), ProductOutput::new(own.all(), of), shift)?;
            let want = match number {
                0 | 1 => {
                    near(&what, &download(queue, of, before)?, &download(queue, of, own)?)?;
                    let want = memory(m * n, of)?;
                    launch::activate(queue, launch::Function::Gelu, of, own.all(), want.all())?;
                    download(queue, of, &want)?
                }
                2 => {
                    let want = memory(m * n, of)?;
                    let from = (kept.all(), own.all());
                    launch::activate_back(queue, launch::Function::Gelu, of, from, want.all())?;
                    download(queue, of, &want)?
                }
                _ => {
                    let want = queue.memory(4 * m)?;
                    launch::bias_back(queue, dtype, a.all(), want.all(), 1)?;
                    near(&what, &download(queue, DType::F32, sums)?, &download(queue, DType::F32, &want)?)?;
                    download(queue, of, own)?
                }
            };
            near(&what, &download(queue, of, by)?, &want)?;
            ensure(standin_products().0 > calls, &what)?;
        }
        rows_apart(queue, dtype)?;
    }
    ensure((standin_epilogues() > 0) == fused, standin_epilogues())
}

/// Logits whose rows are apart, and the two products of their gradient, in which there are zeros between the rows.
fn rows_apart(queue: &Queue, dtype: DType) -> Found {
    let (m, n, k, apart) = (300, 257, 16, 264);
    let (x, w) = (upload(queue, dtype, &values(m * k, 1))?, upload(queue, dtype, &values(n * k, 2))?);
    let spread = |dense: &[f32]| -> Vec<f32> {
        dense.chunks(n).flat_map(|row| row.iter().copied().chain(vec![0.0; apart - n])).collect()
    };
    let dy = values(m * n, 3);
    let (dense, wide) = (upload(queue, dtype, &dy)?, upload(queue, dtype, &spread(&dy))?);
    let matrix =
        |data, rows, columns, transposed, apart| DeviceMatrix { data, rows, columns, transposed, apart };
    let forward = (matrix(x.all(), m, k, false, 0), matrix(w.all(), k, n, true, 0));
    let size = dtype.size();
    let (by, own) = (queue.memory(m * apart * size)?, queue.memory(m * n * size)?);
    let into = ProductOutput { apart, ..ProductOutput::new(by.all(), dtype) };
    vendor::matmul(queue, dtype, forward, into, None)?;
    launch::matmul(queue, dtype, forward, ProductOutput::new(own.all(), dtype), None)?;
    let by: Vec<f32> = download(queue, dtype, &by)?.chunks(apart).flat_map(|row| row[..n].to_vec()).collect();
    near("logits apart", &by, &download(queue, dtype, &own)?)?;
    for turned in [false, true] {
        let product = |dy, apart| match turned {
            false => (matrix(dy, m, n, false, apart), matrix(w.all(), n, k, false, 0)),
            true => (matrix(dy, n, m, true, apart), matrix(x.all(), m, k, false, 0)),
        };
        let rows = if turned { n } else { m };
        let (by, own) = (queue.memory(rows * k * size)?, queue.memory(rows * k * size)?);
        let by_wide = product(wide.all(), apart);
        vendor::matmul(queue, dtype, by_wide, ProductOutput::new(by.all(), dtype), None)?;
        launch::matmul(queue, dtype, product(dense.all(), 0), ProductOutput::new(own.all(), dtype), None)?;
        near("a gradient apart", &download(queue, dtype, &by)?, &download(queue, dtype, &own)?)?;
    }
    Ok(())
}

fn convolutions(queue: &Queue) -> Found {
    for layout in [TensorLayout::Planes, TensorLayout::ChannelsLast] {
        for (dtype, side, stride, padding, groups) in
            [(DType::F32, 3, 1, 1, 1), (DType::F32, 3, 2, 1, 2), (DType::F16, 1, 1, 0, 1)]
        {
            let (n, channels, picture, filters) = (2, 4, (5, 4), 6);
            let s = Conv { dtype, n, channels, picture, filters, side, stride, padding, groups, layout };
            let (p, q) = s.output_picture()?;
            let lengths = [n * channels * 20, filters * channels / groups * side * side, n * filters * p * q];
            let [x, w, y] = [0, 1, 2].map(|nth| upload(queue, dtype, &values(lengths[nth], nth)));
            let (x, w, y) = (x?, w?, y?);
            for part in [ConvProduct::Forward, ConvProduct::Input, ConvProduct::Weight] {
                let length = lengths[match part {
                    ConvProduct::Forward => 2,
                    ConvProduct::Input => 0,
                    ConvProduct::Weight => 1,
                }];
                let zeros = vec![0.0; length];
                let (by, own) = (upload(queue, dtype, &zeros)?, upload(queue, dtype, &zeros)?);
                match part {
                    ConvProduct::Forward => {
                        vendor::conv(queue, part, &s, (x.all(), w.all()), by.all())?;
                        launch::conv(queue, &s, x.all(), w.all(), own.all())?;
                    }
                    ConvProduct::Input => {
                        vendor::conv(queue, part, &s, (y.all(), w.all()), by.all())?;
                        launch::conv_input(queue, &s, y.all(), w.all(), own.all())?;
                    }
                    ConvProduct::Weight => {
                        vendor::conv(queue, part, &s, (x.all(), y.all()), by.all())?;
                        launch::conv_weight(queue, &s, x.all(), y.all(), own.all())?;
                    }
                }
                let what = format!("{part:?} of {s:?}");
                near(&what, &download(queue, dtype, &by)?, &download(queue, dtype, &own)?)?;
            }
        }
    }
    Ok(())
}

#[test]
fn products_and_convolutions_are_the_kernels() {
    alone("vendor::products_and_convolutions_are_the_kernels", "", both(), || {
        let queue = Queue::new(Gpu::open()?, 0)?.pooled();
        ensure(vendor::names(&queue) == ["cuBLASLt", "cuDNN"], vendor::names(&queue))?;
        products(&queue)?;
        epilogues(&queue, true)?;
        convolutions(&queue)?;
        let ((computed, described), used) = (standin_products(), standin_convolutions());
        ensure(computed > 36 && described == 0, (computed, described))?;
        ensure(used.searches > 0 && used.other_bits > 0 && used.described == 0, used)
    });
}

/// A library without epilogues refuses them, and then kernels compute them.
#[test]
fn epilogues_that_the_library_refuses_are_computed_apart() {
    let products = Some(Products { epilogues: false, ..Products::default() });
    let options = StandinOptions { products, ..both() };
    alone("vendor::epilogues_that_the_library_refuses_are_computed_apart", "", options, || {
        epilogues(&Queue::new(Gpu::open()?, 0)?.pooled(), false)
    });
}

/// 16-bit weights may begin anywhere in their bucket, so the alignment that is passed to cuBLASLt must be true.
#[test]
fn d21_operands_are_aligned_as_was_said() {
    seeded("vendor::d21_operands_are_aligned_as_was_said", &[21], both(), || {
        let queue = Queue::new(Gpu::open()?, 0)?;
        let bucket = upload(&queue, DType::F16, &values(1000, 1))?;
        let (b, c) = (upload(&queue, DType::F16, &values(64, 2))?, queue.memory(128)?);
        // The same shape at other addresses: an algorithm chosen for one alignment is not valid for others.
        for at in [256, 128, 0, 130, 64] {
            let data = bucket.all().part(at, 128)?;
            let left = DeviceMatrix::new(data, [8, 8], false);
            let right = DeviceMatrix::new(b.all(), [8, 8], false);
            vendor::matmul(&queue, DType::F16, (left, right), ProductOutput::new(c.all(), DType::F16), None)?;
            let own = queue.memory(128)?;
            launch::matmul(
                &queue,
                DType::F16,
                (left, right),
                ProductOutput::new(own.all(), DType::F16),
                None,
            )?;
            near("a part", &download(&queue, DType::F16, &c)?, &download(&queue, DType::F16, &own)?)?;
        }
        Ok(())
    });
}

#[test]
fn d21_descriptions_are_given_back_where_one_cannot_be_made() {
    for descriptions in 0..4 {
        let convolutions = Some(Convolutions { descriptions, ..Convolutions::default() });
        let test = "vendor::d21_descriptions_are_given_back_where_one_cannot_be_made";
        let options = StandinOptions { convolutions, ..both() };
        alone(test, &descriptions.to_string(), options, || {
            let queue = Queue::new(Gpu::open()?, 0)?;
            let error = convolutions_once(&queue).unwrap_err().to_string();
            ensure(error.contains("ALLOCATION_FAILED"), error)?;
            ensure(standin_convolutions().described == 0, standin_convolutions())
        });
    }
}

const ONE: Conv = Conv {
    dtype: DType::F32,
    n: 1,
    channels: 1,
    picture: (3, 3),
    filters: 1,
    side: 1,
    stride: 1,
    padding: 0,
    groups: 1,
    layout: TensorLayout::Planes,
};

fn convolutions_once(queue: &Queue) -> Found {
    let (x, w, y) = (queue.upload(&[1.0f32; 9])?, queue.upload(&[2.0f32])?, queue.memory(36)?);
    vendor::conv(queue, ConvProduct::Forward, &ONE, (x.all(), w.all()), y.all())?;
    ensure(queue.download::<f32>(y.all())? == [2.0; 9], "2.0")
}

/// On an H200, cuDNN refused a thread's stream while another thread captured the stream that their common handle had before.
#[test]
fn a_thread_convolves_while_another_thread_captures() {
    alone("vendor::a_thread_convolves_while_another_thread_captures", "", both(), || {
        let queue = Queue::new(Gpu::open()?, 0)?.pooled();
        convolutions_once(&queue)?;
        let machine = queue.machine().clone();
        machine.begin_capture(queue.stream())?;
        let (x, w, y) = (queue.memory(36)?, queue.memory(4)?, queue.memory(36)?);
        let captured = vendor::conv(&queue, ConvProduct::Forward, &ONE, (x.all(), w.all()), y.all());
        let other = || convolutions_once(&Queue::new(queue.machine().clone(), 0)?);
        let told = || other().map_err(|error| error.to_string());
        let beside = std::thread::scope(|scope| scope.spawn(told).join().unwrap());
        machine.forget(machine.end_capture(queue.stream())?);
        captured?;
        Ok(beside?)
    });
}

#[test]
fn d17_a_shape_that_cudnn_does_not_support_is_ours() {
    let unsupported = Convolutions { supports: false, ..Convolutions::default() };
    let refused = Convolutions { refuses: true, ..Convolutions::default() };
    for (variant, convolutions_of) in [("no algorithm", unsupported), ("a status of cuDNN 9", refused)] {
        let options = StandinOptions { convolutions: Some(convolutions_of), ..both() };
        alone("vendor::d17_a_shape_that_cudnn_does_not_support_is_ours", variant, options, || {
            convolutions(&Queue::new(Gpu::open()?, 0)?)?;
            let used = standin_convolutions();
            ensure(used.same_bits + used.other_bits == 0 && used.searches > 0, used)
        });
    }
}

/// A search needs memory of its own, which a full device does not have: then cuDNN's rules choose the algorithm.
#[test]
fn a_search_without_memory_leaves_the_choice_to_the_rules() {
    let options = StandinOptions {
        convolutions: Some(Convolutions { search_memory: false, ..Convolutions::default() }),
        ..both()
    };
    alone("vendor::a_search_without_memory_leaves_the_choice_to_the_rules", "", options, || {
        convolutions(&Queue::new(Gpu::open()?, 0)?)?;
        let used = standin_convolutions();
        ensure(used.searches > 0 && used.other_bits > 0 && used.described == 0, used)
    });
}

#[test]
fn d17_the_same_bits_in_every_run() {
    alone("vendor::d17_the_same_bits_in_every_run", "", both(), || {
        vendor::set_deterministic(true);
        let queue = Queue::new(Gpu::open()?, 0)?.pooled();
        products(&queue)?;
        convolutions(&queue)?;
        let used = standin_convolutions();
        // In deterministic mode no algorithm is chosen by measured time, and none runs that sums in varying order.
        ensure(used.searches == 0 && used.other_bits == 0 && used.same_bits > 0, used)
    });
}

#[test]
fn d16_a_library_that_does_not_start_is_absent() {
    let products_of = Some(Products { starts: false, ..Products::default() });
    let convolutions_of = Some(Convolutions { starts: false, ..Convolutions::default() });
    let options = StandinOptions { products: products_of, convolutions: convolutions_of, ..both() };
    let text = alone("vendor::d16_a_library_that_does_not_start_is_absent", "", options, || {
        let queue = Queue::new(Gpu::open()?, 0)?;
        products(&queue)?;
        convolutions(&queue)?;
        ensure(vendor::names(&queue) == ["own products", "own convolutions"], vendor::names(&queue))?;
        ensure(standin_products().0 == 0, standin_products())
    });
    let warnings: Vec<&str> = text.lines().filter(|line| line.starts_with("warning: ")).collect();
    let names = warnings.iter().map(|line| line.contains("cuBLASLt is there and does not start on device 0"));
    assert!(is_child() || (warnings.len() == 2 && names.filter(|is| *is).count() == 1), "{text}");
}

#[test]
fn d16_libraries_of_the_drivers_own_major_version() {
    let options = StandinOptions {
        driver: 12_080,
        nvrtc: Some(Nvrtc { file: "libnvrtc.so.12", version: (12, 8), ..Nvrtc::default() }),
        products: Some(Products { file: "libcublasLt.so.12", version: 120_800, ..Products::default() }),
        others: &["libnvrtc.so.13", "libcublasLt.so.13"],
        ..StandinOptions::default()
    };
    alone("vendor::d16_libraries_of_the_drivers_own_major_version", "", options, || {
        let found = [CudaLibrary::Nvrtc, CudaLibrary::CublasLt]
            .map(|library| library.load().unwrap().display().to_string());
        ensure(found == ["libnvrtc.so.12", "libcublasLt.so.12"], &found)?;
        products(&Queue::new(Gpu::open()?, 0)?.pooled())
    });
}
