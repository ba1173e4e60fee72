//! Execution: arguments that are lent or donated, and the outputs and completion events of each device.

#![expect(unsafe_code, reason = "calls the plugin")]

use std::ops::Range;
use std::sync::Arc;

use crate::buffer::{Buffer, OwnedBuffer};
use crate::device::Device;
use crate::element_type::Shape;
use crate::error::Error;
use crate::event::Event;
use crate::executable::LoadedExecutable;
use crate::ffi::executable::{ExecuteOptions as RawOptions, LoadedExecutableExecute};
use crate::ffi::{Arguments, RawBuffer, RawEvent, Struct};

/// An argument of a program.
#[derive(Debug)]
pub enum Argument<'a> {
    /// A lent buffer, which stays valid and unchanged, unless the program reuses the memory of arguments outside of
    /// [`ExecuteOptions::aliased`].
    Keep(&'a Buffer),
    /// A buffer that is given away: the program may reuse its memory for an output. The buffer is dropped even if the
    /// execution fails.
    Donate(Buffer),
}

impl Argument<'_> {
    fn buffer(&self) -> &Buffer {
        match self {
            Self::Keep(buffer) => buffer,
            Self::Donate(buffer) => buffer,
        }
    }
}

/// The options of an execution.
#[derive(Debug, Clone, Default)]
pub struct ExecuteOptions {
    /// The number of the launch, with which the runtime can detect that hosts launch programs in different orders. 0 if
    /// the launch is not numbered.
    pub launch_id: i32,
    /// The device to launch on. A portable executable requires this option. `None` launches on all devices of the
    /// executable that this process can use.
    pub device: Option<Device>,
    /// A range that contains the indices of all arguments whose memory outputs can take over (`tf.aliasing_output`).
    /// `None` stands for all arguments. The plugin gets a list of the kept arguments in the range; a kept argument
    /// outside of the range may be lost like a donated one.
    pub aliased: Option<Range<usize>>,
    /// True if the plugin creates the events of [`Execution::done`].
    pub reports_end: bool,
}

/// The result of a launch. The devices may still run the program.
#[derive(Debug)]
pub struct Execution {
    /// The outputs, as `[device][output]`.
    pub outputs: Vec<Vec<Buffer>>,
    /// One event per device, which becomes ready when the program has ended on the device, with success or an error.
    /// Empty without [`ExecuteOptions::reports_end`].
    pub done: Vec<Event>,
}

impl LoadedExecutable {
    /// Starts the program on its devices, or on the device in the options. `arguments` are `[device][argument]`, in the
    /// order of [`LoadedExecutable::addressable_devices`], or the single list of the device in the options.
    ///
    /// In the range [`ExecuteOptions::aliased`], the program may reuse the memory of the arguments at an index only if
    /// all devices donate the argument. Donated buffers are dropped in any case.
    ///
    /// # Errors
    /// [`Error::Arguments`] if counts, devices or clients do not match, the plugin's error if it cannot start the
    /// program, or [`Error::Contract`] if the outputs or events that it returns are unusable. The events in
    /// [`Execution::done`] and the outputs report later errors.
    pub fn execute(&self, arguments: Vec<Vec<Argument<'_>>>, options: &ExecuteOptions) -> Result<Execution, Error> {
        let devices = match &options.device {
            Some(device) => std::slice::from_ref(device),
            None => self.addressable_devices(),
        };
        let num_args = self.check(&arguments, devices)?;
        let kept = kept_indices(&arguments, options.aliased.clone().unwrap_or(0..num_args));
        let inputs: Vec<Vec<*mut RawBuffer>> = arguments.iter().map(|list| pointers(list)).collect();
        let input_lists: Vec<*const *mut RawBuffer> = inputs.iter().map(|list| list.as_ptr()).collect();
        let mut outputs = vec![vec![std::ptr::null_mut::<RawBuffer>(); self.num_outputs()]; devices.len()];
        let output_lists: Vec<*mut *mut RawBuffer> = outputs.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let num_events = if options.reports_end { devices.len() } else { 0 };
        let mut done = vec![std::ptr::null_mut::<RawEvent>(); num_events];
        let mut raw_options = raw_options(options.launch_id, &kept);
        let call = LoadedExecutableExecute {
            executable: self.raw(),
            options: &raw mut raw_options,
            argument_lists: input_lists.as_ptr(),
            num_devices: devices.len(),
            num_args,
            output_lists: output_lists.as_ptr(),
            device_complete_events: if done.is_empty() { std::ptr::null_mut() } else { done.as_mut_ptr() },
            execute_device: options.device.as_ref().map_or(std::ptr::null_mut(), Device::raw),
        };
        // SAFETY: all objects exist and belong to one client. The lists have the given lengths and exist until the call
        // returns. Donated buffers are owned, so no buffer is donated twice, and they are dropped after the call.
        unsafe { self.client().api().call(call) }?;
        let name = LoadedExecutableExecute::NAME;
        let done: Vec<_> = done.into_iter().map(|event| Event::new(event, name, self.client())).collect();
        let own = |raw: *mut RawBuffer| OwnedBuffer::new(raw, name, self.client());
        let outputs: Vec<Vec<_>> = outputs.into_iter().map(|list| list.into_iter().map(own).collect()).collect();
        let outputs = outputs.into_iter().map(|list| list.into_iter().collect::<Result<Vec<_>, _>>());
        let outputs = self.with_shapes(outputs.collect::<Result<Vec<_>, _>>()?, devices)?;
        let done = done.into_iter().collect::<Result<Vec<_>, _>>()?;
        drop(arguments);
        Ok(Execution { outputs, done })
    }

    /// Checks the number of the arguments, their devices and their client. Returns their number per device.
    fn check(&self, arguments: &[Vec<Argument<'_>>], devices: &[Device]) -> Result<usize, Error> {
        let refuse = |message: String| Err(Error::Arguments(message));
        if devices.is_empty() {
            return refuse("a portable executable needs the device to run on".to_owned());
        }
        if arguments.len() != devices.len() {
            return refuse(format!(
                "there are {} argument list(s) for {} device(s); each device needs one list",
                arguments.len(),
                devices.len()
            ));
        }
        let num_args = arguments[0].len();
        let expected = self.num_parameters().unwrap_or(num_args);
        for (list, device) in arguments.iter().zip(devices) {
            if !device.client().is_same(self.client()) {
                return refuse("the device to run on belongs to another client".to_owned());
            }
            if list.len() != expected {
                return refuse(format!(
                    "device {} has {} arguments; the program needs {expected}",
                    device.id(),
                    list.len()
                ));
            }
            for (index, argument) in list.iter().enumerate() {
                let found = argument.buffer().device();
                if !found.client().is_same(self.client()) {
                    return refuse(format!("argument {index} belongs to another client than the program"));
                }
                if found != device {
                    let (found, expected) = (found.id(), device.id());
                    return refuse(format!("argument {index} is on device {found}, but must be on device {expected}"));
                }
            }
        }
        Ok(num_args)
    }

    /// Adds the shapes to the outputs. After the first successful query of the shapes, executions reuse them.
    fn with_shapes(&self, outputs: Vec<Vec<OwnedBuffer>>, devices: &[Device]) -> Result<Vec<Vec<Buffer>>, Error> {
        let shapes = match self.output_shapes().get() {
            Some(shapes) => shapes,
            None => {
                check_devices(&outputs, devices)?;
                let first = outputs.first().into_iter().flatten();
                let shapes = first.map(|buffer| buffer.shape().map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
                self.output_shapes().get_or_init(|| shapes)
            }
        };
        let buffers = |(list, device): (Vec<OwnedBuffer>, &Device)| {
            let buffer =
                |(owned, shape): (OwnedBuffer, &Arc<Shape>)| Buffer::new(owned, Arc::clone(shape), device.clone());
            list.into_iter().zip(shapes).map(buffer).collect()
        };
        Ok(outputs.into_iter().zip(devices).map(buffers).collect())
    }
}

/// Checks that the lists of outputs are in the order of the devices, because the header promises no order. Checks only
/// the first output of each list, and nothing if the plugin does not report the devices of buffers.
fn check_devices(outputs: &[Vec<OwnedBuffer>], devices: &[Device]) -> Result<(), Error> {
    for (list, expected) in outputs.iter().zip(devices) {
        match list.first().map(OwnedBuffer::device) {
            Some(Ok(found)) if found != *expected => {
                let what = "outputs that are not in the order of the devices";
                return Err(Error::Contract { function: LoadedExecutableExecute::NAME, what });
            }
            Some(Err(error)) if !error.is_unimplemented() => return Err(error),
            Some(_) | None => {}
        }
    }
    Ok(())
}

/// Returns the indices in `aliased` of the arguments that at least one device keeps.
fn kept_indices(arguments: &[Vec<Argument<'_>>], aliased: Range<usize>) -> Vec<i64> {
    let is_kept = |index: &usize| arguments.iter().any(|list| matches!(list.get(*index), Some(Argument::Keep(_))));
    let num_args = arguments.first().map_or(0, Vec::len);
    let aliased = aliased.start..aliased.end.min(num_args);
    aliased.filter(is_kept).map(|index| i64::try_from(index).unwrap_or(i64::MAX)).collect()
}

fn pointers(list: &[Argument<'_>]) -> Vec<*mut RawBuffer> {
    list.iter().map(|argument| argument.buffer().raw()).collect()
}

fn raw_options(launch_id: i32, kept: &[i64]) -> Struct<RawOptions> {
    Struct::new(RawOptions {
        send_callbacks: std::ptr::null_mut(),
        recv_callbacks: std::ptr::null_mut(),
        num_send_ops: 0,
        num_recv_ops: 0,
        launch_id,
        between: 0,
        non_donatable_input_indices: kept.as_ptr(),
        num_non_donatable_input_indices: kept.len(),
        context: std::ptr::null_mut(),
        call_location: std::ptr::null(),
        num_tasks: 0,
        task_ids: std::ptr::null_mut(),
        incarnation_ids: std::ptr::null_mut(),
        multi_slice_config: std::ptr::null_mut(),
    })
}
