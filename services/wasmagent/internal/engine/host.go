package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/wasmmeter"
)

// Guests can import the functions of WASI (preview 1) that language runtimes call when they start. In addition, the
// fuel meter imports the refill function. None of these functions gives access to the host. The clock advances only
// while the guest sleeps. Random numbers are computed from a seed. Output is written to a log of limited size. There
// are no files.

const (
	wasi = "wasi_snapshot_preview1"
	// fuelPerHostCall is the fuel that each call of a host function costs, in addition to the fuel for the function's
	// work. A host call without any work takes about as long as this number of instructions.
	fuelPerHostCall = 200
	// maxPieces limits the number of buffers or subscriptions in one call, and maxBytes limits the size of each buffer,
	// in bytes.
	maxPieces = 64
	maxBytes  = 64 << 10
)

// These are the WASI error numbers success, badf, inval and nosys.
const (
	errnoSuccess = 0
	errnoBadf    = 8
	errnoInval   = 28
	errnoNosys   = 52
)

// A hostFunc is a function that guests can import. Like an [api.GoModuleFunc], it reads its arguments from the stack
// and writes its results to the stack.
type hostFunc struct {
	wasmmeter.FuncType

	do func(ctx context.Context, in *Instance, memory api.Memory, stack []uint64)
}

func signature(params string, results string) wasmmeter.FuncType {
	types := func(text string) (out []wasmmeter.ValueType) {
		for _, c := range text {
			out = append(out, map[rune]wasmmeter.ValueType{'i': wasmmeter.I32, 'l': wasmmeter.I64}[c])
		}
		return out
	}
	return wasmmeter.FuncType{Params: types(params), Results: types(results)}
}

// wasiFunc returns a WASI function whose only result is an error number.
func wasiFunc(params string, do func(in *Instance, memory api.Memory, args []uint64) uint64) hostFunc {
	return hostFunc{signature(params, "i"), func(_ context.Context, in *Instance, memory api.Memory, stack []uint64) {
		stack[0] = do(in, memory, stack)
	}}
}

// wasiStub returns a WASI function that does nothing except return the given error number.
func wasiStub(params string, errno uint64) hostFunc {
	return wasiFunc(params, func(*Instance, api.Memory, []uint64) uint64 { return errno })
}

var imports = map[string]hostFunc{
	wasi + ".args_sizes_get":    wasiFunc("ii", noArguments),
	wasi + ".args_get":          wasiFunc("ii", func(*Instance, api.Memory, []uint64) uint64 { return errnoSuccess }),
	wasi + ".environ_sizes_get": wasiFunc("ii", noArguments),
	wasi + ".environ_get":       wasiFunc("ii", func(*Instance, api.Memory, []uint64) uint64 { return errnoSuccess }),
	wasi + ".clock_time_get":    wasiFunc("ili", clockTimeGet),
	wasi + ".random_get":        wasiFunc("ii", randomGet),
	wasi + ".poll_oneoff":       wasiFunc("iiii", pollOneoff),
	wasi + ".sched_yield":       wasiFunc("", func(*Instance, api.Memory, []uint64) uint64 { return errnoSuccess }),
	wasi + ".fd_write":          wasiFunc("iiii", fdWrite),
	wasi + ".proc_exit": {signature("i", ""), func(_ context.Context, _ *Instance, _ api.Memory, stack []uint64) {
		panic(fmt.Errorf("it exited with %d", uint32(stack[0])))
	}},

	wasi + ".fd_close":              wasiStub("i", errnoBadf),
	wasi + ".fd_fdstat_get":         wasiStub("ii", errnoBadf),
	wasi + ".fd_fdstat_set_flags":   wasiStub("ii", errnoBadf),
	wasi + ".fd_filestat_get":       wasiStub("ii", errnoBadf),
	wasi + ".fd_filestat_set_size":  wasiStub("il", errnoBadf),
	wasi + ".fd_pread":              wasiStub("iiili", errnoBadf),
	wasi + ".fd_prestat_get":        wasiStub("ii", errnoBadf),
	wasi + ".fd_prestat_dir_name":   wasiStub("iii", errnoBadf),
	wasi + ".fd_pwrite":             wasiStub("iiili", errnoBadf),
	wasi + ".fd_read":               wasiStub("iiii", errnoBadf),
	wasi + ".fd_readdir":            wasiStub("iiili", errnoBadf),
	wasi + ".fd_seek":               wasiStub("ilii", errnoBadf),
	wasi + ".fd_sync":               wasiStub("i", errnoBadf),
	wasi + ".path_create_directory": wasiStub("iii", errnoNosys),
	wasi + ".path_filestat_get":     wasiStub("iiiii", errnoNosys),
	wasi + ".path_open":             wasiStub("iiiiillii", errnoNosys),
	wasi + ".path_readlink":         wasiStub("iiiiii", errnoNosys),
	wasi + ".path_remove_directory": wasiStub("iii", errnoNosys),
	wasi + ".path_rename":           wasiStub("iiiiii", errnoNosys),
	wasi + ".path_unlink_file":      wasiStub("iii", errnoNosys),
}

// importNames returns the names of all functions that can be imported, in sorted order, for error messages.
func importNames() []string { return slices.Sorted(maps.Keys(imports)) }

func defineImports(ctx context.Context, r wazero.Runtime) error {
	refillModule := r.NewHostModuleBuilder(wasmmeter.RefillModule)
	refillModule.NewFunctionBuilder().WithGoFunction(api.GoFunc(func(ctx context.Context, stack []uint64) {
		stack[0] = uint64(instanceOf(ctx).refill(ctx, int64(stack[0])))
	}), types(wasmmeter.I64), types(wasmmeter.I64)).Export(wasmmeter.RefillName)
	if _, err := refillModule.Instantiate(ctx); err != nil {
		return fmt.Errorf("supply guests with fuel: %w", err)
	}
	calls := r.NewHostModuleBuilder(wasi)
	for name, f := range imports {
		calls.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, m api.Module, stack []uint64) {
			in := instanceOf(ctx)
			in.charge(fuelPerHostCall)
			f.do(ctx, in, m.Memory(), stack)
			// The fuel is checked after each host call, because the guest may make many host calls before its own code
			// checks the fuel again.
			if remaining := int64(in.fuel.Get()); remaining < 0 {
				in.fuel.Set(uint64(in.refill(ctx, remaining)))
			}
		}), types(f.Params...), types(f.Results...)).Export(name[len(wasi)+1:])
	}
	if _, err := calls.Instantiate(ctx); err != nil {
		return fmt.Errorf("supply guests with WASI: %w", err)
	}
	return nil
}

func types(list ...wasmmeter.ValueType) (out []api.ValueType) {
	for _, t := range list {
		out = append(out, api.ValueType(t))
	}
	return out
}

// noArguments implements args_sizes_get and environ_sizes_get for a guest without arguments and environment variables.
func noArguments(_ *Instance, memory api.Memory, args []uint64) uint64 {
	if !memory.WriteUint32Le(uint32(args[0]), 0) || !memory.WriteUint32Le(uint32(args[1]), 0) {
		return errnoInval
	}
	return errnoSuccess
}

func clockTimeGet(in *Instance, memory api.Memory, args []uint64) uint64 {
	if !memory.WriteUint64Le(uint32(args[2]), in.clock) {
		return errnoInval
	}
	return errnoSuccess
}

func randomGet(in *Instance, memory api.Memory, args []uint64) uint64 {
	into, exists := memory.Read(uint32(args[0]), uint32(args[1]))
	if !exists || len(into) > maxBytes {
		return errnoInval
	}
	in.charge(int64(len(into)))
	_, _ = in.random.Read(into) // never fails
	return errnoSuccess
}

// These constants describe the layout of subscriptions and events in poll_oneoff. All sizes and offsets are in bytes.
const (
	subscriptionSize, eventSize = 48, 32
	tagAt, timeoutAt, flagsAt   = 8, 24, 40
	clockTag, absolute          = 0, 1
)

// pollOneoff implements poll_oneoff as a sleep. It advances the clock to the earliest time that a subscription names.
// It ignores subscriptions to files, because there are no files.
func pollOneoff(in *Instance, memory api.Memory, args []uint64) uint64 {
	n := uint32(args[2])
	if n == 0 || n > maxPieces {
		return errnoInval
	}
	subscriptions, exists := memory.Read(uint32(args[0]), n*subscriptionSize)
	events, alsoExists := memory.Read(uint32(args[1]), n*eventSize)
	if !exists || !alsoExists {
		return errnoInval
	}
	until, first := uint64(0), -1
	for i := range int(n) {
		s := subscriptions[i*subscriptionSize:]
		if s[tagAt] != clockTag {
			continue
		}
		at := binary.LittleEndian.Uint64(s[timeoutAt:])
		if s[flagsAt]&absolute == 0 {
			at += in.clock
		}
		if first < 0 || at < until {
			until, first = at, i
		}
	}
	if first < 0 {
		return errnoNosys
	}
	// A call sleeps for at most a year, so that the clock does not overflow.
	in.clock = max(in.clock, min(until, in.clock+uint64(365*24*time.Hour)))
	clear(events[:eventSize])
	copy(events, subscriptions[first*subscriptionSize:][:8]) // the subscription's user data
	if !memory.WriteUint32Le(uint32(args[3]), 1) {
		return errnoInval
	}
	return errnoSuccess
}

// fdWrite implements fd_write. It appends the output to the log.
func fdWrite(in *Instance, memory api.Memory, args []uint64) uint64 {
	file, at, n := uint32(args[0]), uint32(args[1]), uint32(args[2])
	if file != 1 && file != 2 {
		return errnoBadf
	}
	if n > maxPieces {
		return errnoInval
	}
	all := uint32(0)
	for i := range n {
		address, exists := memory.ReadUint32Le(at + 8*i)
		length, alsoExists := memory.ReadUint32Le(at + 8*i + 4)
		if !exists || !alsoExists || length > maxBytes {
			return errnoInval
		}
		text, exists := memory.Read(address, length)
		if !exists {
			return errnoInval
		}
		in.charge(int64(length))
		in.log.write(text)
		all += length
	}
	if !memory.WriteUint32Le(uint32(args[3]), all) {
		return errnoInval
	}
	return errnoSuccess
}

// MaxPrinted limits the size of the output that is returned for one step, in bytes. The beginning of a longer output is
// dropped.
const MaxPrinted = 4096

// outputLog contains the end of a guest's output.
type outputLog struct {
	text []byte
	// cut is true if the beginning of the output was dropped.
	cut bool
}

func (l *outputLog) write(text []byte) {
	l.text = append(l.text, text...)
	if excess := len(l.text) - MaxPrinted; excess > 0 {
		l.text, l.cut = append(l.text[:0], l.text[excess:]...), true
	}
}

func (l *outputLog) String() string {
	text := strings.ToValidUTF8(string(l.text), "�")
	if !l.cut && len(text) <= MaxPrinted {
		return text
	}
	const mark = "… "
	return mark + strings.ToValidUTF8(text[max(0, len(text)-MaxPrinted+len(mark)):], "")
}
