package policy

import (
	"errors"
	"fmt"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// Config configures the policy service.
type Config struct {
	// Paths lists the files and directories with policy documents. It is empty if Stored is true. In that case the
	// documents are in the store, and [Service.ApplyDocuments] replaces them.
	Paths  []string
	Stored bool
	// SessionCap is a factor of at least 1. The limit for all sessions of a principal together is the limit for one
	// session multiplied by SessionCap.
	SessionCap int
	People

	// Decide is how long approvers have to decide on a call. Execute is how long an approved call can still be made. Both
	// must be positive. They are the defaults for rules that do not set these times.
	Decide, Execute time.Duration
	// Source is `sqlite` or the URL of a PostgreSQL database. Data is the data directory, which contains the SQLite
	// database.
	Source, Data string
	// MaxStoreAge applies only to PostgreSQL. It is how long the service continues to use the state from the last read
	// while the store is unavailable. After this time, calls are refused. Zero means 5 minutes.
	MaxStoreAge time.Duration
	// Servers contains the settings of the configured servers, by name. [Service.settings] returns the defaults for all
	// other servers.
	Servers map[string]catalog.Settings
	// Changes says who must approve changes to stored documents. If it is nil, changes need no approval.
	Changes *policyv1.ApprovalTerms
	// OwnerMayApprove is true if the owner of an agent may approve the agent's calls.
	OwnerMayApprove bool
	// TestsWithin limits the duration of the tests in documents. Documents whose tests take longer are refused.
	TestsWithin time.Duration
	// DraftTestsWithin limits the duration of the tests in documents that a request only checks. Zero means 5 s.
	// TestsWithin also applies to these documents.
	DraftTestsWithin time.Duration
	// Observe says which servers are in observe mode (mode: observe), in which decisions are recorded but not enforced.
	// ObserveWarnings contains warnings about these servers, which are logged.
	Observe         engine.Observe
	ObserveWarnings []string
}

// baseConfig returns the configuration of the policy service without tokens, paths, servers and store.
func baseConfig(f *config.File) Config {
	return Config{
		SessionCap: f.Session.Cap, Decide: f.Approvals.Decide, Execute: f.Approvals.Execute, OwnerMayApprove: f.Approvals.OwnerMayApprove,
		TestsWithin: maxTestTime, Observe: observeOf(f),
	}
}

// FromFile returns the configuration of the policy service. It does not resolve the secrets in tokens.
func FromFile(f *config.File, env config.Env) (Config, error) {
	cfg := baseConfig(f)
	source, err := f.Stores.Policy.Resolve(f, env)
	if err != nil {
		return Config{}, fmt.Errorf("stores.policy: %w", err)
	}
	for _, w := range f.ObservationWarnings(time.Now()) {
		cfg.ObserveWarnings = append(cfg.ObserveWarnings, w.Error())
	}
	cfg.Source, cfg.Data, cfg.Servers = source, f.Path(f.Data), make(map[string]catalog.Settings, len(f.Servers))
	for name, server := range f.Servers {
		mode, err := catalog.ParseMode(server.PinMode())
		if err != nil {
			return Config{}, fmt.Errorf("servers.%s.pin: %w", name, err)
		}
		cfg.Servers[name] = catalog.Settings{Mode: mode, Trusted: server.Trusted, ForEachPerson: server.Credentials.ForEachPerson()}
	}
	cfg.Stored, cfg.MaxStoreAge = f.PoliciesInStore(), f.Stores.PolicyMaxAge
	cfg.Changes = changeTerms(f.Approvals.PolicyChanges)
	for _, p := range f.PolicyFiles() {
		cfg.Paths = append(cfg.Paths, f.Path(p))
	}
	cfg.People = configuredPeople(f)
	return cfg, nil
}

// Validate returns an error that contains all problems in the configuration.
func (c *Config) Validate() error {
	var errs []error
	if c.SessionCap < 1 {
		errs = append(errs, errors.New("policy: session cap must be at least 1"))
	}
	if c.Source == "" || c.Source == sqlstore.SQLite && c.Data == "" {
		errs = append(errs, errors.New("policy: a store is required"))
	}
	if c.Stored && len(c.Paths) > 0 {
		errs = append(errs, errors.New("policy: policies come either from files or from the store"))
	}
	if c.Changes != nil && !c.Stored {
		errs = append(errs, errors.New("policy: only changes of stored documents can need an approval"))
	}
	if c.Changes != nil {
		errs = append(errs, checkApprovers(c.Changes, c.approvers(c.OwnerMayApprove), ""))
	}
	if c.MaxStoreAge < 0 {
		errs = append(errs, errors.New("policy: the maximum age of the store's state must not be negative"))
	}
	if c.Decide <= 0 || c.Execute <= 0 {
		errs = append(errs, errors.New("policy: the times to decide and to execute must be positive"))
	}
	if c.TestsWithin <= 0 {
		errs = append(errs, errors.New("policy: the time for the tests in documents must be positive"))
	}
	return errors.Join(errs...)
}
