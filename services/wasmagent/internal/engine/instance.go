package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/sluice-mesh/sluice/services/internal/gosched"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/wasmmeter"
)

// fuelPerRefill is how much fuel an instance receives per refill. Most code uses up this fuel within some tens of
// microseconds. A step can't be interrupted between two refills, not even at its deadline.
const fuelPerRefill = 100_000

// longestTimeSlice limits how long a guest runs before other guests may run, even if only a few guests are running. The
// limit is low because a guest needs several time slices for each envelope. Before each time slice, the guest must wait
// for the other guests.
const longestTimeSlice = 250 * time.Microsecond

// Limits limits what an instance may use. The zero value allows nothing.
type Limits struct {
	// Memory limits the size of the guest's memory, in bytes.
	Memory int64
	// Envelope limits the size of an envelope that the guest returns, in bytes.
	Envelope uint32
}

// Origin contains the start time and the random seed of an instance.
type Origin struct {
	// Clock is the time at the start, in nanoseconds since 1970. It must be at least 1, because Go's runtime treats 0
	// as a broken clock. The clock advances only while the guest sleeps.
	Clock uint64
	// Seed is the seed of the guest's random numbers.
	Seed [32]byte
}

// An Instance is a running guest. At most one goroutine may use it at a time.
type Instance struct {
	program *Program
	limits  Limits
	in      api.Module
	memory  *linearMemory
	fuel    api.MutableGlobal
	state   []api.MutableGlobal
	alloc   api.Function
	step    api.Function

	clock  uint64
	random *rand.ChaCha8
	log    outputLog

	stint gosched.Work
	// maxFuel is how much fuel the current call may use in total. grantedFuel is how much fuel the call has received so
	// far.
	maxFuel, grantedFuel int64

	busy atomic.Bool
	// failed is the error that made the instance unusable, or nil if the instance can be used.
	failed error
}

type instanceKey struct{}

// instanceOf returns the instance of the guest that has called a host function.
func instanceOf(ctx context.Context) *Instance {
	in, _ := ctx.Value(instanceKey{}).(*Instance)
	return in
}

// Start starts an instance. fuel limits the fuel that the instance may use while it starts. Start returns the fuel that
// was used. It returns the errors of [Instance.Step], and [ErrMemory] if the module's initial memory exceeds the
// limits.
func (p *Program) Start(ctx context.Context, limits Limits, from Origin, fuel int64) (*Instance, int64, error) {
	in, ctx, err := p.instantiate(ctx, limits)
	if err != nil {
		return nil, 0, err
	}
	in.clock, in.random = max(from.Clock, 1), rand.NewChaCha8(from.Seed)
	used, err := in.run(fuel, func() error {
		if init := in.in.ExportedFunction(exportInit); init != nil {
			if _, err := init.Call(ctx); err != nil {
				return err
			}
		}
		version, err := in.in.ExportedFunction(exportVersion).Call(ctx)
		if err == nil && version[0] != ABIVersion {
			err = fmt.Errorf("its ABI version is %d, want %d", version[0], ABIVersion)
		}
		return err
	})
	if err != nil {
		return nil, used, startError{errors.Join(err, in.Close(ctx)), in.Printed()}
	}
	return in, used, nil
}

// startError is the error of a failed start. It also contains the guest's output.
type startError struct {
	error

	printed string
}

// Unwrap returns the error without the output.
func (e startError) Unwrap() error { return e.error }

// PrintedOf returns the output of a guest whose start has failed with err.
func PrintedOf(err error) string {
	failed, _ := errors.AsType[startError](err)
	return failed.printed
}

// instantiate returns an instance that has not run yet, and the context with which its functions must be called.
func (p *Program) instantiate(ctx context.Context, limits Limits) (in *Instance, _ context.Context, err error) {
	defer func() {
		if err != nil && in != nil && in.memory != nil { // the initial memory could not be allocated
			in.memory.Free()
		}
	}()
	defer recoverAllocation(&err)
	if need := int64(p.pages) * pageSize; need > limits.Memory {
		return nil, nil, fmt.Errorf("%w: it needs %d bytes at the start, and has %d", ErrMemory, need, limits.Memory)
	}
	in = &Instance{program: p, limits: limits, stint: gosched.Work{Longest: longestTimeSlice}}
	ctx = in.context(ctx)
	allocating := experimental.WithMemoryAllocator(ctx, experimental.MemoryAllocatorFunc(func(_, most uint64) experimental.LinearMemory {
		in.memory = p.engine.pool.take(min(int64(min(most, 1<<32)), limits.Memory))
		return in.memory
	}))
	if in.in, err = p.engine.runtime.InstantiateModule(allocating, p.compiled, wazero.NewModuleConfig().WithName("").WithStartFunctions()); err != nil {
		return in, nil, guestError(err)
	}
	in.alloc, in.step = in.in.ExportedFunction(exportAlloc), in.in.ExportedFunction(exportStep)
	for _, name := range append([]string{wasmmeter.FuelGlobal}, p.state...) {
		global, ok := in.in.ExportedGlobal(name).(api.MutableGlobal)
		if !ok {
			return nil, nil, errors.Join(fmt.Errorf("%w: the global %s can't be set", ErrTrap, name), in.Close(ctx))
		}
		in.state = append(in.state, global)
	}
	in.fuel, in.state = in.state[0], in.state[1:]
	p.first.Do(func() {
		memory, _ := in.in.Memory().Read(0, in.in.Memory().Size())
		p.image = imageOf(memory)
	})
	return in, ctx, nil
}

// recoverAllocation recovers from a panic of [linear.Reallocate] in Go code, and converts the panic to an error.
func recoverAllocation(err *error) {
	switch fault := recover(); fault {
	case nil:
	case ErrMemory, ErrSystem:
		*err, _ = fault.(error)
	default:
		panic(fault)
	}
}

func (in *Instance) context(ctx context.Context) context.Context {
	return context.WithValue(ctx, instanceKey{}, in)
}

// Step sends the guest an envelope. It returns a copy of the envelope that the guest returned, and the fuel that was
// used. The step may use at most the given fuel, and ends when ctx is done. Step returns [ErrFuel], [ErrMemory],
// [ErrSystem], [ErrDeadline] or [ErrTrap].
func (in *Instance) Step(ctx context.Context, envelope []byte, fuel int64) (answer []byte, used int64, err error) {
	ctx = in.context(ctx)
	in.log = outputLog{}
	used, err = in.run(fuel, func() error {
		address, err := in.alloc.Call(ctx, uint64(len(envelope)))
		if err != nil {
			return err
		}
		if !in.in.Memory().Write(uint32(address[0]), envelope) {
			return errors.New("alloc returned an address beyond the end of its memory")
		}
		result, err := in.step.Call(ctx, address[0], uint64(len(envelope)))
		if err != nil {
			return err
		}
		at, length := uint32(result[0]>>32), uint32(result[0])
		if length > in.limits.Envelope {
			return fmt.Errorf("it returned an envelope of %d bytes, and %d are allowed", length, in.limits.Envelope)
		}
		text, ok := in.in.Memory().Read(at, length)
		if !ok {
			return errors.New("it returned an envelope beyond the end of its memory")
		}
		answer = append([]byte(nil), text...)
		return nil
	})
	return answer, used, err
}

// errHost means that a bug in this program has caused a trap.
var errHost = errors.New("the host function that the guest called has a fault")

// errStackOverflow means that the guest's calls are nested too deeply.
var errStackOverflow = fmt.Errorf("stack overflow: its nested calls take more than %d MiB", wasmmeter.MaxStack>>20)

// run calls a function that runs the guest with the given fuel. It returns the fuel that the guest has used.
func (in *Instance) run(fuel int64, part func() error) (used int64, err error) {
	if !in.busy.CompareAndSwap(false, true) {
		return 0, fmt.Errorf("%w: another call uses the instance", ErrTrap)
	}
	defer in.busy.Store(false)
	if in.failed != nil {
		return 0, in.failed
	}
	in.maxFuel, in.grantedFuel = fuel, 0
	in.fuel.Set(0)
	err = part()
	used = in.grantedFuel - int64(in.fuel.Get())
	in.fuel.Set(0)
	if err == nil && used > fuel { // the fuel was used up after the guest's last check
		err = ErrFuel
	}
	if err == nil {
		return used, nil
	}
	in.failed = guestError(err)
	return min(used, fuel), in.failed
}

// traceMarkers contains the strings at which a stack trace begins in an error from the runtime. guestError removes the
// stack traces.
var traceMarkers = []string{" (recovered by wazero)", "\nwasm stack trace:", "\n\nGo runtime stack trace:", "\ngoroutine "}

// guestError converts an error from the runtime to an error of this package. It removes stack traces, because callers
// see the error.
func guestError(err error) error {
	for _, known := range []error{ErrFuel, ErrMemory, ErrSystem, ErrDeadline} {
		if errors.Is(err, known) {
			return known
		}
	}
	if _, isOurs := errors.AsType[runtime.Error](err); isOurs { // the message contains addresses in this program
		return fmt.Errorf("%w: %w", ErrTrap, errHost)
	}
	text := err.Error()
	for _, stack := range traceMarkers {
		text, _, _ = strings.Cut(text, stack)
	}
	return fmt.Errorf("%w: %s", ErrTrap, strings.TrimPrefix(text, "wasm error: "))
}

// refill grants more fuel after the fuel counter has fallen below zero. remaining is the value of the counter. refill
// returns the new value of the counter.
func (in *Instance) refill(ctx context.Context, remaining int64) int64 {
	in.stint.Part() // lets other guests run first
	if remaining == wasmmeter.StackSpent {
		panic(errStackOverflow)
	}
	if ctx.Err() != nil {
		in.fuel.Set(uint64(remaining)) // keeps the count of the used fuel correct
		panic(ErrDeadline)
	}
	give := min(max(fuelPerRefill, -remaining), in.maxFuel-in.grantedFuel)
	in.grantedFuel += give
	if remaining+give < 0 {
		in.fuel.Set(uint64(remaining + give))
		panic(ErrFuel)
	}
	return remaining + give
}

func (in *Instance) charge(fuel int64) {
	in.fuel.Set(in.fuel.Get() - uint64(fuel))
}

// Memory returns the size of the guest's memory, in bytes.
func (in *Instance) Memory() int64 { return int64(in.in.Memory().Size()) }

// Printed returns what the guest wrote to standard output and standard error during the newest step, or during its
// start if there was no step. It returns at most the last [MaxPrinted] bytes, as UTF-8.
func (in *Instance) Printed() string { return in.log.String() }

// Close ends the instance. After that, the instance can't be used any more.
func (in *Instance) Close(ctx context.Context) error {
	if in.failed == nil {
		in.failed = fmt.Errorf("%w: the instance was closed", ErrTrap)
	}
	return in.in.Close(ctx)
}
