package wasmagent

import (
	"context"
	"errors"
	"fmt"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/worker"
)

// ready makes sure that an agent's module is compiled. The module is the current one of the guest, or an earlier one
// from the store. Errors: guests.ErrUnknown if the guest is neither shipped nor listed any more, [errModule],
// [worker.ErrModule], the store's.
func (s *Service) ready(ctx context.Context, guest, digest string) error {
	switch {
	case s.guests.Digest(guest) == "":
		_, _, err := s.guests.Get(guest) // returns the reason
		return err
	case s.guests.Digest(guest) == digest:
		_, err := s.compile(ctx, guest)
		return err
	case s.workers.Knows(digest):
		return nil
	}
	return s.compiled(ctx, digest, func() ([]byte, error) {
		of, module, err := s.store.Module(ctx, digest)
		if err == nil && of != guest {
			err = fmt.Errorf("%w: it belongs to the guest %s", store.ErrModule, of)
		}
		if errors.Is(err, store.ErrModule) {
			err = fmt.Errorf("%w: %s: %w", errModule, guest, err)
		}
		return module, err
	})
}

// compile makes sure that the current module of a guest is compiled and stored. Agents keep running a stored module
// after the guest's module changes.
func (s *Service) compile(ctx context.Context, name string) (digest string, err error) {
	digest = s.guests.Digest(name)
	if _, ok := s.stored.Load(digest); ok && s.workers.Knows(digest) {
		return digest, nil
	}
	module, _, err := s.guests.Get(name)
	if err != nil {
		return digest, err
	}
	if err := s.compiled(ctx, digest, func() ([]byte, error) { return module, nil }); err != nil {
		return digest, err
	}
	if err := s.store.PutModule(ctx, digest, name, module); err != nil {
		return digest, err
	}
	s.stored.Store(digest, true)
	return digest, nil
}

// compiled makes sure that a module is compiled. It compiles one module at a time, and calls read only if the module
// has to be compiled.
func (s *Service) compiled(ctx context.Context, digest string, read func() ([]byte, error)) error {
	select {
	case s.compiling <- struct{}{}:
		defer func() { <-s.compiling }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.workers.Knows(digest) {
		return nil
	}
	if err := s.refused[digest]; err != nil {
		return err
	}
	module, err := read()
	if err != nil {
		return err
	}
	if _, err = s.workers.Compile(ctx, module); errors.Is(err, worker.ErrModule) { // the same module fails again
		s.refused[digest] = err
	}
	return err
}

// mayRun makes sure that an agent's module is compiled, or returns the reason why the agent can't run. Errors: those of
// [Service.ready].
func (s *Service) mayRun(ctx context.Context, a *agent.Agent) error {
	return s.ready(ctx, a.Guest, a.Proto().GetModuleDigest())
}

// isGone reports whether an error of [Service.ready] is permanent, so that the module will never run in this process.
// The error of an unknown guest is not permanent, because the configuration may list the guest again.
func isGone(err error) bool {
	return errors.Is(err, worker.ErrModule) || errors.Is(err, errModule)
}

// Ready implements [agent.Host].
func (h host) Ready(ctx context.Context, a *agent.Agent, digest string) error {
	return h.ready(ctx, a.Guest, digest)
}

// moduleOf returns the module of a guest with this digest: the current module, or an earlier one from the store.
func (s *Service) moduleOf(ctx context.Context, guest, digest string) ([]byte, error) {
	if s.guests.Digest(guest) == digest {
		module, _, err := s.guests.Get(guest)
		return module, err
	}
	_, module, err := s.store.Module(ctx, digest)
	if errors.Is(err, store.ErrModule) {
		err = fmt.Errorf("%w: %s: %w", errModule, guest, err)
	}
	return module, err
}

// guestOf returns the guest that has a module with this digest now, or had it earlier. ok is false if there is none, or
// if that guest is neither shipped nor listed any more.
func (s *Service) guestOf(ctx context.Context, digest string) (name string, ok bool, err error) {
	if name, ok = s.guests.ByDigest(digest); ok {
		return name, true, nil
	}
	name, err = s.store.ModuleGuest(ctx, digest)
	if errors.Is(err, store.ErrModule) {
		return "", false, nil
	}
	return name, err == nil && s.guests.Digest(name) != "", err
}

// MigrateAgent implements wasmagentv1.AgentServiceServer.
func (s *Service) MigrateAgent(ctx context.Context, req *wasmagentv1.MigrateAgentRequest) (*wasmagentv1.MigrateAgentResponse, error) {
	a, err := s.find(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	digest, err := s.compile(ctx, a.Guest)
	if err != nil {
		return nil, toStatus(err)
	}
	from, err := a.Migrate(by(ctx), digest)
	if err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.MigrateAgentResponse{Agent: a.Proto(), FromDigest: from}, nil
}
