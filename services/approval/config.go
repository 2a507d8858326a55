package approval

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-mesh/sluice/services/approval/internal/notice"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

// Config configures the approval service.
type Config struct {
	// Decide is how long people may take to approve or deny a call. Execute is how long an approved call may wait until it
	// is sent. Both must be positive. A rule of the policy can override them.
	Decide, Execute time.Duration
	// CoolDown is how long a call stays denied after a person has denied it. It must not be negative.
	CoolDown time.Duration
	// MaxPending is the maximum number of one principal's calls that wait for approval at the same time. It must be at
	// least 1.
	MaxPending int
	// MaxAsked is the maximum number of approvals that one principal may request within any period of length AskedWindow.
	// It must be at least
	// 1. AskedWindow must be at least 1 s and at most [config.MaxAskedWindow].
	MaxAsked    int
	AskedWindow time.Duration
	// OwnerMayApprove is true if the owner of an agent may approve and deny the agent's calls.
	OwnerMayApprove bool
	// Source is `sqlite`, or the URL of a PostgreSQL database. Data is the data directory, which contains the SQLite file.
	Source, Data string
	// Notices are the channels that notify people of approvals.
	Notices notice.Config
}

// DefaultConfig returns the default configuration. It has no channels for notices.
func DefaultConfig() Config {
	return Config{
		Decide: 15 * time.Minute, Execute: 5 * time.Minute, CoolDown: 10 * time.Minute,
		MaxPending: 5, MaxAsked: 30, AskedWindow: time.Hour, Source: sqlstore.SQLite,
	}
}

// FromFile reads the configuration of the approval service from the configuration file.
func FromFile(f *config.File, env config.Env) (Config, error) {
	source, err := f.Stores.Approval.Resolve(f, env)
	if err != nil {
		return Config{}, fmt.Errorf("stores.approval: %w", err)
	}
	cfg := DefaultConfig()
	cfg.Decide, cfg.Execute, cfg.MaxPending = f.Approvals.Decide, f.Approvals.Execute, f.Approvals.MaxPending
	cfg.MaxAsked, cfg.AskedWindow = f.Approvals.MaxAsked.Max, f.Approvals.MaxAsked.Window
	cfg.OwnerMayApprove = f.Approvals.OwnerMayApprove
	cfg.Source, cfg.Data = source, f.Path(f.Data)
	cfg.Notices, err = noticeConfig(f, env)
	return cfg, err
}

// Validate returns all errors in the configuration.
func (c *Config) Validate() error {
	var errs []error
	if c.Decide <= 0 || c.Execute <= 0 || c.CoolDown < 0 {
		errs = append(errs, fmt.Errorf("approval: approvals.decide and approvals.execute must be positive, and the cool-down must not be negative; they are %v, %v and %v", c.Decide, c.Execute, c.CoolDown))
	}
	if c.MaxPending < 1 {
		errs = append(errs, fmt.Errorf("approval: approvals.max_pending must be at least 1, is %d", c.MaxPending))
	}
	if c.MaxAsked < 1 || c.AskedWindow < time.Second || c.AskedWindow > config.MaxAskedWindow {
		errs = append(errs, fmt.Errorf("approval: approvals.max_asked must be at least 1, in a window of 1s to 24h; it is %d in %v", c.MaxAsked, c.AskedWindow))
	}
	if c.Source == "" || c.Source == sqlstore.SQLite && c.Data == "" {
		errs = append(errs, errors.New("approval: a store is required: set stores.approval, and data for SQLite"))
	}
	return errors.Join(append(errs, c.Notices.Validate())...)
}
