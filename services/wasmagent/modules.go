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

// ready compiles the module of an agent, unless it is compiled: the current module of its guest, or an earlier one that
// is stored. A guest that is neither shipped nor listed any more does not run. Errors: guests.ErrUnknown, [errModule],
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
			err = fmt.Errorf("%w: it is one of the guest %s", store.ErrModule, of)
		}
		if errors.Is(err, store.ErrModule) {
			err = fmt.Errorf("%w: %s: %w", errModule, guest, err)
		}
		return module, err
	})
}

// compile compiles the current module of a guest, unless it is compiled. It stores the module for agents that run it
// after the guest gets another one.
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

// compiled compiles a module, unless it is compiled, one module at a time. It calls read only if it needs the module.
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

// mayRun makes sure that an agent's module is compiled, or returns why it may not run. Errors: those of
// [Service.ready].
func (s *Service) mayRun(ctx context.Context, a *agent.Agent) error {
	return s.ready(ctx, a.Guest, a.Proto().GetModuleDigest())
}

// isGone reports whether an error of [Service.ready] means that the module never runs here. A guest that is missing may
// be listed again, so its error is not one of them.
func isGone(err error) bool {
	return errors.Is(err, worker.ErrModule) || errors.Is(err, errModule)
}

// Ready implements [agent.Host].
func (h host) Ready(ctx context.Context, a *agent.Agent, digest string) error {
	return h.ready(ctx, a.Guest, digest)
}

// moduleOf returns the module of a guest with this digest, the current one or a stored earlier one.
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

// guestOf returns the guest to which a module belongs or belonged. ok is false if no shipped or listed guest had it.
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
