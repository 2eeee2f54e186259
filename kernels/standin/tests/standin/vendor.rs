//! Tests of products and convolutions by stand-ins for cuBLASLt and cuDNN, against Allfold's own kernels on the same device.

use crate::alone::{Found, alone, ensure, is_child, seeded};
use allfold_cuda::launch::{self, Conv, DeviceMatrix, TensorLayout};
use allfold_cuda::libraries::CudaLibrary;
use allfold_cuda::vendor::{self, ConvProduct};
use allfold_cuda::{Gpu, Memory, Queue};
use allfold_kernels::{DType, bf16, f16};
use allfold_standin::{
    Convolutions, Nvrtc, Products, StandinOptions, standin_convolutions, standin_products,
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
                let left = DeviceMatrix { data: a.all(), rows: m, columns: k, transposed: ta };
                let right = DeviceMatrix { data: b.all(), rows: k, columns: n, transposed: tb };
                vendor::matmul(queue, dtype, (left, right), by.all(), keep, bias)?;
                launch::matmul(queue, dtype, left, right, own.all(), keep, bias)?;
                let what = format!("product {m} x {k} x {n}, {ta} {tb} {keep} {biased}, {dtype}");
                near(&what, &download(queue, dtype, &by)?, &download(queue, dtype, &own)?)?;
            }
        }
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
        convolutions(&queue)?;
        let ((computed, described), used) = (standin_products(), standin_convolutions());
        ensure(computed > 36 && described == 0, (computed, described))?;
        ensure(used.searches > 0 && used.other_bits > 0 && used.described == 0, used)
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
            let left = DeviceMatrix { data, rows: 8, columns: 8, transposed: false };
            let right = DeviceMatrix { data: b.all(), rows: 8, columns: 8, transposed: false };
            vendor::matmul(&queue, DType::F16, (left, right), c.all(), 0.0, None)?;
            let own = queue.memory(128)?;
            launch::matmul(&queue, DType::F16, left, right, own.all(), 0.0, None)?;
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
        products: Some(Products { file: "libcublasLt.so.12", version: 120_800, starts: true }),
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
