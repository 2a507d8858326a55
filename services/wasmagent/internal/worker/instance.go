package worker

import (
	"context"
	"errors"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	wasmworkerv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmworker/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
)

const closeTimeout = 10 * time.Second

// Instance is a guest that runs in a worker. At most one goroutine may use it at a time.
type Instance struct {
	process      *process
	name         string
	lastDuration time.Duration
	printed      string
	ended        atomic.Bool
}

// Start starts an instance, as [engine.Program.Start] does. It fails if the start takes longer than the given time.
func (s *Supervisor) Start(ctx context.Context, digest string, limits engine.Limits, from engine.Origin, fuel int64, within time.Duration) (*Instance, int64, error) {
	return s.beginInstance(ctx, &wasmworkerv1.StartInstanceRequest{
		Digest: digest, MemoryBytes: limits.Memory, EnvelopeBytes: int32(min(limits.Envelope, math.MaxInt32)),
		From: &wasmworkerv1.StartInstanceRequest_Origin{Origin: &wasmworkerv1.Origin{Clock: from.Clock, Seed: from.Seed[:]}},
		Fuel: fuel, Time: durationpb.New(within),
	})
}

// Restore returns an instance that continues from a snapshot.
func (s *Supervisor) Restore(ctx context.Context, digest string, limits engine.Limits, snapshot []byte) (*Instance, error) {
	in, _, err := s.beginInstance(ctx, &wasmworkerv1.StartInstanceRequest{
		Digest: digest, MemoryBytes: limits.Memory, EnvelopeBytes: int32(min(limits.Envelope, math.MaxInt32)),
		From: &wasmworkerv1.StartInstanceRequest_Snapshot{Snapshot: snapshot},
	})
	return in, err
}

func (s *Supervisor) beginInstance(ctx context.Context, req *wasmworkerv1.StartInstanceRequest) (*Instance, int64, error) {
	p, err := s.acquireWorker(ctx)
	if err != nil {
		return nil, 0, err
	}
	in := &Instance{process: p, name: strconv.FormatInt(s.names.Add(1), 10)}
	if err := s.ensureProgram(ctx, p, req.GetDigest()); err != nil {
		in.uncount()
		return nil, 0, err
	}
	req.Instance = in.name
	resp, err := p.client.StartInstance(ctx, req)
	if err != nil {
		if ctx.Err() != nil { // the worker may have started the instance
			go func() { _ = in.Close(context.WithoutCancel(ctx)) }()
		} else {
			in.uncount()
			p.pauseFor(failureCost)
		}
		fuel, err := engineError(err)
		return nil, fuel, p.workerError(ctx, err)
	}
	p.hasStartedInstance.Store(true)
	in.printed = resp.GetPrinted()
	return in, resp.GetFuel(), nil
}

// Step sends the instance an envelope, as [engine.Instance.Step] does. It fails if the step takes longer than the given
// time. It returns the errors of [engine.Instance.Step], [ErrWorkerLost] or [ErrBusy].
func (i *Instance) Step(ctx context.Context, envelope []byte, fuel int64, within time.Duration) (answer []byte, used int64, err error) {
	begin := time.Now()
	resp, err := i.process.client.StepInstance(ctx, &wasmworkerv1.StepInstanceRequest{Instance: i.name, Envelope: envelope, Fuel: fuel, Time: durationpb.New(within)})
	i.lastDuration, i.printed = time.Since(begin), resp.GetPrinted()
	if err != nil {
		i.process.pauseFor(failureCost)
		used, err := engineError(err)
		return nil, used, i.process.workerError(ctx, err)
	}
	i.process.pauseFor(len(resp.GetEnvelope()))
	return resp.GetEnvelope(), resp.GetFuel(), nil
}

// LastDuration returns how long the newest step took in the worker. [Instance.Step] may take longer, because it pauses
// after a large answer or a failure.
func (i *Instance) LastDuration() time.Duration { return i.lastDuration }

// Printed returns what the guest printed in the newest step, or during its start if it has not run a step yet. It
// returns at most the last [engine.MaxPrinted] bytes. Use [PrintedOf] for the output of a failed step.
func (i *Instance) Printed() string { return i.printed }

// Snapshot returns the whole state of the instance.
func (i *Instance) Snapshot(ctx context.Context) ([]byte, error) {
	resp, err := i.process.client.SnapshotInstance(ctx, &wasmworkerv1.SnapshotInstanceRequest{Instance: i.name})
	if err != nil {
		_, err := engineError(err)
		return nil, i.process.workerError(ctx, err)
	}
	return resp.GetSnapshot(), nil
}

// Close ends the instance, even if ctx is already done.
func (i *Instance) Close(ctx context.Context) error {
	defer i.uncount()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if _, err := i.process.client.DropInstance(ctx, &wasmworkerv1.DropInstanceRequest{Instance: i.name}); err != nil {
		if err = i.process.workerError(ctx, err); !errors.Is(err, ErrWorkerLost) {
			return err
		}
	}
	return nil
}

// uncount decrements the number of instances of the instance's worker. Further calls do nothing.
func (i *Instance) uncount() {
	if !i.ended.Swap(true) {
		i.process.instances.Add(-1)
	}
}
