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

// ensureModule makes sure that the module of an agent is compiled. This is the guest's current module, or an earlier
// module from the store. ensureModule returns modules.ErrUnknown if the guest is no longer shipped or listed in the
// configuration, [errGuestChanged], [worker.ErrModuleRefused], or an error from the store.
func (s *Service) ensureModule(ctx context.Context, guest, digest string) error {
	switch {
	case s.guests.Digest(guest) == "":
		_, _, err := s.guests.Load(guest) // returns the reason
		return err
	case s.guests.Digest(guest) == digest:
		_, err := s.compileGuest(ctx, guest)
		return err
	case s.workers.HasModule(digest):
		return nil
	}
	return s.compileModule(ctx, digest, func() ([]byte, error) {
		of, module, err := s.store.Module(ctx, digest)
		if err == nil && of != guest {
			err = fmt.Errorf("%w: it belongs to the guest %s", store.ErrModuleUnknown, of)
		}
		if errors.Is(err, store.ErrModuleUnknown) {
			err = fmt.Errorf("%w: %s: %w", errGuestChanged, guest, err)
		}
		return module, err
	})
}

// compileGuest makes sure that the current module of a guest is compiled and stored. The module is stored so that
// existing agents can still run it after the guest has got a new module.
func (s *Service) compileGuest(ctx context.Context, name string) (digest string, err error) {
	digest = s.guests.Digest(name)
	if _, ok := s.storedModules.Load(digest); ok && s.workers.HasModule(digest) {
		return digest, nil
	}
	module, _, err := s.guests.Load(name)
	if err != nil {
		return digest, err
	}
	if err := s.compileModule(ctx, digest, func() ([]byte, error) { return module, nil }); err != nil {
		return digest, err
	}
	if err := s.store.PutModule(ctx, digest, name, module); err != nil {
		return digest, err
	}
	s.storedModules.Store(digest, true)
	return digest, nil
}

// compileModule makes sure that a module is compiled. It compiles only one module at a time. It calls read only if the
// module is not compiled yet.
func (s *Service) compileModule(ctx context.Context, digest string, read func() ([]byte, error)) error {
	select {
	case s.compiling <- struct{}{}:
		defer func() { <-s.compiling }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.workers.HasModule(digest) {
		return nil
	}
	if err := s.compileErrors[digest]; err != nil {
		return err
	}
	module, err := read()
	if err != nil {
		return err
	}
	if _, err = s.workers.Compile(ctx, module); errors.Is(err, worker.ErrModuleRefused) { // a retry would fail, too
		s.compileErrors[digest] = err
	}
	return err
}

func (s *Service) ensureAgentModule(ctx context.Context, a *agent.Agent) error {
	return s.ensureModule(ctx, a.Guest, a.Proto().GetModuleDigest())
}

// isPermanentModuleError reports whether an error from [Service.ensureModule] means that the module can never run in
// this process. An unknown guest is not a permanent error, because the configuration may list the guest again.
func isPermanentModuleError(err error) bool {
	return errors.Is(err, worker.ErrModuleRefused) || errors.Is(err, errGuestChanged)
}

// EnsureModule implements [agent.Host].
func (h host) EnsureModule(ctx context.Context, a *agent.Agent, digest string) error {
	return h.ensureModule(ctx, a.Guest, digest)
}

// moduleByDigest returns the module of a guest with the given digest. This is the guest's current module, or an earlier
// module from the store.
func (s *Service) moduleByDigest(ctx context.Context, guest, digest string) ([]byte, error) {
	if s.guests.Digest(guest) == digest {
		module, _, err := s.guests.Load(guest)
		return module, err
	}
	_, module, err := s.store.Module(ctx, digest)
	if errors.Is(err, store.ErrModuleUnknown) {
		err = fmt.Errorf("%w: %s: %w", errGuestChanged, guest, err)
	}
	return module, err
}

// guestByModule returns the guest whose current or earlier module has the given digest. ok is false if there is no such
// guest, or if the guest is no longer shipped or listed in the configuration.
func (s *Service) guestByModule(ctx context.Context, digest string) (name string, ok bool, err error) {
	if name, ok = s.guests.ByDigest(digest); ok {
		return name, true, nil
	}
	name, err = s.store.ModuleGuest(ctx, digest)
	if errors.Is(err, store.ErrModuleUnknown) {
		return "", false, nil
	}
	return name, err == nil && s.guests.Digest(name) != "", err
}

// MigrateAgent implements wasmagentv1.AgentServiceServer.
func (s *Service) MigrateAgent(ctx context.Context, req *wasmagentv1.MigrateAgentRequest) (*wasmagentv1.MigrateAgentResponse, error) {
	a, err := s.findAgent(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	digest, err := s.compileGuest(ctx, a.Guest)
	if err != nil {
		return nil, toStatus(err)
	}
	from, err := a.Migrate(callerOf(ctx), digest)
	if err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.MigrateAgentResponse{Agent: a.Proto(), FromDigest: from}, nil
}
