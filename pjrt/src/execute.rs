//! Execution: arguments lent or donated, outputs and completion events of each device.

#![expect(unsafe_code, reason = "calls the plugin")]

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
    /// Stays valid and unchanged, even where the program could reuse its memory.
    Keep(&'a Buffer),
    /// Given away: the program may reuse its memory for an output. It can never be read again, also if execution fails.
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

/// How to execute.
#[derive(Debug, Clone, Default)]
pub struct ExecuteOptions {
    /// Number of the launch, by which the runtime finds hosts that launch in different orders. 0 is none.
    pub launch_id: i32,
    /// Launch on this device only: for a portable executable, or for one device of several, each of which then needs
    /// its own launch.
    pub device: Option<Device>,
}

/// What an execution returns at once, while the devices still work.
#[derive(Debug)]
pub struct Execution {
    /// `[device][output]`.
    pub outputs: Vec<Vec<Buffer>>,
    /// One per device: ready when the device has ended the program, well or badly.
    pub done: Vec<Event>,
}

impl LoadedExecutable {
    /// Starts the program on its devices. `arguments` are `[device][argument]`, in the order of
    /// [`LoadedExecutable::addressable_devices`].
    ///
    /// An argument position is donated if no device keeps it. Donated buffers are dropped in any case.
    ///
    /// # Errors
    /// [`Error::Arguments`] if numbers, devices or clients do not fit; what the plugin says to the start. A program
    /// that fails later tells it through [`Execution::done`] and through its outputs.
    pub fn execute(&self, arguments: Vec<Vec<Argument<'_>>>, options: &ExecuteOptions) -> Result<Execution, Error> {
        let devices = match &options.device {
            Some(device) => std::slice::from_ref(device),
            None => self.addressable_devices(),
        };
        let num_args = self.check(&arguments, devices)?;
        let kept = kept_indices(&arguments, num_args);
        let inputs: Vec<Vec<*mut RawBuffer>> = arguments.iter().map(|list| pointers(list)).collect();
        let input_lists: Vec<*const *mut RawBuffer> = inputs.iter().map(|list| list.as_ptr()).collect();
        let mut outputs = vec![vec![std::ptr::null_mut::<RawBuffer>(); self.num_outputs()]; devices.len()];
        let output_lists: Vec<*mut *mut RawBuffer> = outputs.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let mut done = vec![std::ptr::null_mut::<RawEvent>(); devices.len()];
        let mut raw_options = raw_options(options.launch_id, &kept);
        let call = LoadedExecutableExecute {
            executable: self.raw(),
            options: &raw mut raw_options,
            argument_lists: input_lists.as_ptr(),
            num_devices: devices.len(),
            num_args,
            output_lists: output_lists.as_ptr(),
            device_complete_events: done.as_mut_ptr(),
            execute_device: options.device.as_ref().map_or(std::ptr::null_mut(), Device::raw),
        };
        // SAFETY: all objects are alive and of one client; the lists have the lengths that are named, and all are kept
        // until the call returns. Buffers that are not kept are owned, hence given once, and dropped after the call.
        unsafe { self.client().api().call(call) }?;
        let name = LoadedExecutableExecute::NAME;
        let done = done.into_iter().map(|event| Event::new(event, name, self.client())).collect();
        let own = |raw: *mut RawBuffer| OwnedBuffer::new(raw, name, self.client());
        let outputs: Vec<Vec<_>> = outputs.into_iter().map(|list| list.into_iter().map(own).collect()).collect();
        let outputs = outputs.into_iter().map(|list| list.into_iter().collect::<Result<Vec<_>, _>>());
        let outputs = self.with_shapes(outputs.collect::<Result<Vec<_>, _>>()?, devices)?;
        drop(arguments);
        Ok(Execution { outputs, done })
    }

    /// Checks the arguments and returns how many there are per device.
    fn check(&self, arguments: &[Vec<Argument<'_>>], devices: &[Device]) -> Result<usize, Error> {
        let refuse = |message: String| Err(Error::Arguments(message));
        if devices.is_empty() {
            return refuse("a portable executable needs the device to execute on".to_owned());
        }
        if arguments.len() != devices.len() {
            return refuse(format!("{} argument lists for {} devices", arguments.len(), devices.len()));
        }
        let num_args = arguments[0].len();
        let expected = self.num_parameters().unwrap_or(num_args);
        for (list, device) in arguments.iter().zip(devices) {
            if !device.client().is_same(self.client()) {
                return refuse("execution on a device of another client".to_owned());
            }
            if list.len() != expected {
                return refuse(format!("{} arguments for device {}, expected {expected}", list.len(), device.id()));
            }
            for (index, argument) in list.iter().enumerate() {
                let found = argument.buffer().device();
                if found != device {
                    let (found, expected) = (found.id(), device.id());
                    return refuse(format!("argument {index} lies on device {found}, expected {expected}"));
                }
            }
        }
        Ok(num_args)
    }

    /// Gives the outputs their shapes, which the first execution asks the plugin for.
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

/// The header does not say in which order the devices' outputs come; asked once, since it cannot change.
fn check_devices(outputs: &[Vec<OwnedBuffer>], devices: &[Device]) -> Result<(), Error> {
    for (list, expected) in outputs.iter().zip(devices) {
        match list.first().map(OwnedBuffer::device) {
            Some(Ok(found)) if found != *expected => {
                let what = "outputs in another order than that of the devices";
                return Err(Error::Contract { function: LoadedExecutableExecute::NAME, what });
            }
            Some(Err(error)) if !error.is_unimplemented() => return Err(error),
            Some(_) | None => {}
        }
    }
    Ok(())
}

/// Argument positions that some device keeps.
fn kept_indices(arguments: &[Vec<Argument<'_>>], num_args: usize) -> Vec<i64> {
    let is_kept = |index: &usize| arguments.iter().any(|list| matches!(list[*index], Argument::Keep(_)));
    (0..num_args).filter(is_kept).map(|index| i64::try_from(index).unwrap_or(i64::MAX)).collect()
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
