//! Hearth's kernels as CUDA C++: a client whose launches are compiled and written down, and never run.

use std::{
    collections::HashSet,
    fs,
    io::Write,
    path::Path,
    sync::{Arc, Mutex},
};

use anyhow::Context;
use burn_cubecl::cubecl::{
    bytes::Bytes,
    client::Client,
    device::{DeviceId, DeviceService, ServerUtilitiesHandle, ServiceId},
    dry_run::LaunchMode,
    ir::{
        ContiguousElements, DeviceIdentity, DeviceProperties, HardwareProperties, MemoryDeviceProperties,
        MmaProperties, TargetProperties,
    },
    prelude::CubeCount,
    profile::{ProfileDuration, TimingMethod},
    server::{
        BufferBinding, CopyDescriptor, KernelArguments, ProfileError, ProfilingToken, Server, ServerCommunication,
        ServerError, ServerStorage, ServerUtilities,
    },
};
use cubecl_cpp::{
    cuda::{
        arch::CudaArchitecture,
        mma::{CudaCmmaCompiler, manual::contiguous_elements_cuda},
    },
    register_supported_types,
    shared::{CompilationOptions, CppCompiler, CppSupportedFeatures, mma::register_wmma_features},
    target::Cuda,
};
use cubecl_environment::{backtrace::BackTrace, stream::StreamId};
use cubecl_server::{
    allocator::ContiguousMemoryLayoutPolicy,
    kernel::{CompiledKernel, CubeKernel, define_kernel},
    logging::ServerLogger,
    memory_management::{ManagedMemoryHandle, MemoryAllocationMode, StreamMemoryReport},
    storage::{BytesStorage, ComputeStorage, ManagedResource},
};
use serde_json::json;

use crate::ops::cube::bench::{Case, Gpu, cases, show::short_name, sweeps};

type Future<T> = std::pin::Pin<Box<dyn std::future::Future<Output = T> + Send>>;

/// What a launch became.
struct Source {
    kernel: &'static str,
    entry: String,
    text: String,
    shared_bytes: usize,
    lanes: u32,
}

/// What was launched since it was last taken.
static LAUNCHED: Mutex<Vec<Result<Source, String>>> = Mutex::new(Vec::new());

/// The device: an H100 or H200 as its Vulkan driver describes it.
#[derive(Debug)]
struct Recorder {
    utilities: Arc<ServerUtilities>,
    options: CompilationOptions,
    seen: HashSet<String>,
}

/// Shared memory of a workgroup that NVIDIA's Vulkan driver offers.
const SHARED_BYTES: usize = 48 << 10;

impl DeviceService for Recorder {
    fn init(device_id: DeviceId) -> Self {
        let architecture = CudaArchitecture { version: 90, tensor_cores: true };
        let hardware = HardwareProperties {
            load_width: 128,
            vector_register_count: None,
            plane_size_min: 32,
            plane_size_max: 32,
            max_bindings: 32,
            max_shared_memory_size: SHARED_BYTES,
            max_cube_count: (i32::MAX as u32, 65_535, 65_535),
            max_units_per_cube: 1024,
            max_cube_dim: (1024, 1024, 64),
            num_streaming_multiprocessors: Some(132),
            num_cpu_cores: None,
            last_level_cache_size: None,
            num_tensor_cores: Some(4),
            min_tensor_cores_dim: Some(8),
            max_vector_size: 16,
            cube_mma_reserved_shared_memory: 0,
        };
        let memory = MemoryDeviceProperties::new(1 << 34, 256);
        let identity = DeviceIdentity { name: "sm_90a".to_owned(), fingerprint: "sources".to_owned(), physical: None };
        let mut properties =
            DeviceProperties::new(Default::default(), memory, hardware, TimingMethod::System, identity);
        register_supported_types(&mut properties);
        properties.features.memory_reinterpret = true;
        properties.features.alignment = true;
        register_wmma_features(CudaCmmaCompiler::Cpp.supported_cmma_combinations(&architecture), &mut properties);
        let row_major = burn_cubecl::cubecl::cmma::MatrixLayout::RowMajor;
        let target = TargetProperties {
            mma: MmaProperties {
                register_size_bits: 32,
                const_plane_size: 32,
                register_layout_a: row_major,
                register_layout_b: burn_cubecl::cubecl::cmma::MatrixLayout::ColMajor,
                register_layout_acc: row_major,
                register_duplication_a: 1,
                register_duplication_b: 1,
                register_duplication_acc: 1,
                contiguous_elements: ContiguousElements::new(contiguous_elements_cuda),
            },
        };
        let options = CompilationOptions {
            supports_features: CppSupportedFeatures {
                fast_math: true,
                dp4a: true,
                grid_constants: true,
                ..Default::default()
            },
            ..Default::default()
        };
        let (utilities, _) = ServerUtilities::init(
            ServiceId::of::<Self>(device_id),
            "cuda",
            properties,
            target,
            Arc::new(ServerLogger::default()),
            ContiguousMemoryLayoutPolicy::new(256),
        );
        Self { utilities: Arc::new(utilities), options, seen: HashSet::new() }
    }

    fn utilities(&self) -> ServerUtilitiesHandle {
        self.utilities.clone()
    }
}

impl ServerCommunication for Recorder {}

impl Server for Recorder {
    fn initialize_memory(&mut self, _: ManagedMemoryHandle, _: u64, _: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    fn logger(&self) -> Arc<ServerLogger> {
        self.utilities.logger.clone()
    }

    fn utilities(&self) -> Arc<ServerUtilities> {
        self.utilities.clone()
    }

    fn read(&mut self, descriptors: Vec<CopyDescriptor>, _: StreamId) -> Future<Result<Vec<Bytes>, ServerError>> {
        let n_bytes = |read: &CopyDescriptor| read.shape.iter().product::<usize>() * read.elem_size;
        let zeros = descriptors.iter().map(|read| Bytes::from_bytes_vec(vec![0; n_bytes(read)])).collect();
        Box::pin(std::future::ready(Ok(zeros)))
    }

    fn write(&mut self, _: Vec<(CopyDescriptor, Bytes)>, _: StreamId) {}

    fn sync(&mut self, _: Vec<BufferBinding>, _: StreamId) -> Future<Result<(), ServerError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn check(&mut self, _: Vec<BufferBinding>, _: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    #[expect(unsafe_code, reason = "the trait's; nothing is run")]
    unsafe fn launch(
        &mut self,
        kernel: Box<dyn CubeKernel>,
        _: CubeCount,
        _: KernelArguments,
        _: StreamId,
        _: LaunchMode,
    ) {
        if !self.seen.insert(format!("{:?}", kernel.id())) {
            return;
        }
        let compiled = define_kernel(&*kernel).and_then(|definition| {
            CompiledKernel::compile(&*kernel, definition, &mut CppCompiler::<Cuda>::default(), &self.options)
        });
        let source = compiled.map(|compiled| Source {
            kernel: kernel.name(),
            entry: compiled.entrypoint_name,
            shared_bytes: compiled.repr.map_or(0, |repr| repr.shared_memory_size),
            lanes: compiled.cube_dim.num_elems(),
            text: compiled.source,
        });
        if let Ok(mut launched) = LAUNCHED.lock() {
            launched.push(source.map_err(|error| format!("{}: {error}", kernel.name())));
        }
    }

    fn flush(&mut self, _: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    fn memory_report(&mut self, _: StreamId) -> Option<StreamMemoryReport> {
        None
    }

    fn memory_cleanup(&mut self, _: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    fn start_profile(&mut self, _: StreamId) -> Result<ProfilingToken, ServerError> {
        Err(ServerError::graph_capture_unsupported())
    }

    fn end_profile(&mut self, _: StreamId, _: ProfilingToken) -> Result<ProfileDuration, ProfileError> {
        Err(ProfileError::Unknown { reason: "nothing runs here".to_owned(), backtrace: BackTrace::capture() })
    }

    fn allocation_mode(&mut self, _: MemoryAllocationMode, _: StreamId) {}
}

impl ServerStorage for Recorder {
    type Storage = BytesStorage;

    fn get_resource(
        &mut self,
        _: BufferBinding,
        _: StreamId,
    ) -> Result<ManagedResource<<BytesStorage as ComputeStorage>::Resource>, ServerError> {
        Err(ServerError::graph_capture_unsupported())
    }
}

/// Writes the kernels to `dir`: a file each, and `kernels.jsonl` with a line for each. With `plans`, those of the products alone, with
/// all plans that the card tries.
///
/// # Errors
/// If a file cannot be written, or a kernel has no form in CUDA C++.
pub fn write(dir: &Path, is_tiny: bool, plans: bool) -> anyhow::Result<()> {
    fs::create_dir_all(dir).context("cannot create the folder")?;
    let mut list = fs::File::create(dir.join("kernels.jsonl")).context("cannot write the list of kernels")?;
    let gpu = Gpu::of_client(Client::load::<Recorder>(DeviceId::new(0, 0)));
    let mut n_written = 0;
    let mut visit = |case: &Case| {
        let output = case.launch();
        // Until the launch is through.
        gpu.wait(&output)?;
        let launched = LAUNCHED.lock().map(|mut launched| std::mem::take(&mut *launched)).unwrap_or_default();
        for source in launched {
            let source = source.map_err(anyhow::Error::msg)?;
            let file = format!("{n_written:03}.cu");
            n_written += 1;
            fs::write(dir.join(&file), &source.text).context("cannot write a kernel")?;
            let line = json!({
                "case": case.name,
                "kernel": short_name(source.kernel),
                "entry": source.entry,
                "file": file,
                "shared_bytes": source.shared_bytes,
                "lanes": source.lanes,
            });
            writeln!(list, "{line}").context("cannot write the list of kernels")?;
        }
        Ok(())
    };
    if plans { sweeps::products(&gpu, is_tiny, &mut visit) } else { cases::for_each(&gpu, is_tiny, visit) }
}
