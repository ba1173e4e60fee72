//! Execution: arguments that are lent or donated, and the outputs and completion events of each device.

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
    /// Lent: it stays valid and unchanged, even if the program could reuse its memory.
    Keep(&'a Buffer),
    /// Given away: the program may reuse its memory for an output. It can never be read again, even if execution fails.
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
    /// The number of the launch, with which the runtime detects hosts that launch in different orders. 0 means no
    /// number.
    pub launch_id: i32,
    /// The only device to launch on. Needed for a portable executable; of several devices each then needs its own
    /// launch.
    pub device: Option<Device>,
}

/// The result of a launch, which is returned while the devices still work.
#[derive(Debug)]
pub struct Execution {
    /// The outputs, as `[device][output]`.
    pub outputs: Vec<Vec<Buffer>>,
    /// One event per device, ready when the device has ended the program, with success or an error.
    pub done: Vec<Event>,
}

impl LoadedExecutable {
    /// Starts the program on its devices. `arguments` are `[device][argument]`, in the order of
    /// [`LoadedExecutable::addressable_devices`].
    ///
    /// The argument at an index is donated only if every device donates it. Donated buffers are dropped in any case.
    ///
    /// # Errors
    /// [`Error::Arguments`] if counts, devices or clients do not match, or the plugin's error at the start. An error
    /// after the start comes with [`Execution::done`] and with the outputs.
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
        // SAFETY: all objects are alive and belong to one client. The lists have the given lengths and exist until the
        // call returns. Donated buffers are owned, so each is given once, and they are dropped after the call.
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

    /// Checks the arguments and returns their number per device.
    fn check(&self, arguments: &[Vec<Argument<'_>>], devices: &[Device]) -> Result<usize, Error> {
        let refuse = |message: String| Err(Error::Arguments(message));
        if devices.is_empty() {
            return refuse("a portable executable needs the device to execute on".to_owned());
        }
        if arguments.len() != devices.len() {
            return refuse(format!(
                "{} argument list(s) for {} device(s), expected one for each",
                arguments.len(),
                devices.len()
            ));
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
                    return refuse(format!("argument {index} is on device {found}, expected {expected}"));
                }
            }
        }
        Ok(num_args)
    }

    /// Adds the shapes to the outputs. The first execution queries them from the plugin.
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

/// Checks that outputs come in the order of the devices, about which the header says nothing. The order cannot change,
/// so it is checked once.
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

/// The indices of arguments that at least one device keeps.
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
