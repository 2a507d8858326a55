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
	// Paths lists the files and directories with policy documents. It is empty if Stored is true, because the documents
	// are then in the store, and [Service.ApplyDocuments] replaces them.
	Paths  []string
	Stored bool
	// SessionCap limits how many calls a principal can make in all its sessions together. It is this factor times the
	// limit for one session. SessionCap must be at least 1.
	SessionCap int
	People

	// Decide is how long people have to decide on a call. Execute is how long after its approval a call may be made.
	// Both must be positive. They apply if a rule does not set these times.
	Decide, Execute time.Duration
	// Source says where the store is. It is `sqlite`, or the URL of a PostgreSQL database. Data is the data directory,
	// which contains the SQLite database.
	Source, Data string
	// MaxStoreAge is how long the state that was read last is used while the store is unavailable. Afterwards, calls
	// are refused. It applies only to PostgreSQL. Zero means 5 minutes.
	MaxStoreAge time.Duration
	// Servers contains the settings of the configured servers, by name. The settings of other servers are those of
	// [Service.settings].
	Servers map[string]catalog.Settings
	// Changes says who must approve changes to stored documents. If it is nil, changes need no approval.
	Changes *policyv1.ApprovalTerms
	// OwnerMayApprove is true if the owner of an agent may approve the agent's calls.
	OwnerMayApprove bool
	// TestsWithin limits how long the tests in documents may take. If they take longer, the documents are refused.
	TestsWithin time.Duration
	// DraftTestsWithin is the same for documents that a request only checks. Zero means 5 s. TestsWithin applies, too.
	DraftTestsWithin time.Duration
	// Observe says for which servers decisions are only recorded and not enforced (mode: observe). ObserveWarnings
	// contains warnings about this, which are logged.
	Observe         engine.Observe
	ObserveWarnings []string
}

// baseConfig returns the configuration of the policy service without the tokens, the paths, the servers and the store.
func baseConfig(f *config.File) Config {
	return Config{
		SessionCap: f.Session.Cap, Decide: f.Approvals.Decide, Execute: f.Approvals.Execute, OwnerMayApprove: f.Approvals.OwnerMayApprove,
		TestsWithin: maxTestTime, Observe: observeOf(f),
	}
}

// FromFile returns the configuration of the policy service. It does not resolve the secrets of tokens.
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
		cfg.Servers[name] = catalog.Settings{Mode: mode, Trusted: server.Trusted}
	}
	cfg.Stored, cfg.MaxStoreAge = f.PoliciesInStore(), f.Stores.PolicyMaxAge
	cfg.Changes = changeTerms(f.Approvals.PolicyChanges)
	for _, p := range f.PolicyFiles() {
		cfg.Paths = append(cfg.Paths, f.Path(p))
	}
	cfg.People = configuredPeople(f)
	return cfg, nil
}

// Validate returns an error that contains all problems of the configuration.
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
