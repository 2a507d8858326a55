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
	// Decide is how long people have to decide, and Execute how long an approved
	// call may wait to run, where a rule says nothing; both positive.
	Decide, Execute time.Duration
	// CoolDown is how long a denied call stays denied; 0 or more.
	CoolDown time.Duration
	// MaxPending is how many calls of one principal may wait; 1 or more.
	MaxPending int
	// MaxAsked is how often one principal may ask people in any stretch of AskedWindow:
	// 1 or more, and 1 s to [config.MaxAskedWindow].
	MaxAsked    int
	AskedWindow time.Duration
	// OwnerMayApprove lets the owner of an agent decide on its calls.
	OwnerMayApprove bool
	// Source is where approvals are kept: `sqlite`, or the URL of a PostgreSQL
	// database. Data is the data folder, in which SQLite's are.
	Source, Data string
	// Notices say whom to tell of approvals, and how.
	Notices notice.Config
}

// DefaultConfig returns the configuration used where a file says nothing.
func DefaultConfig() Config {
	return Config{
		Decide: 15 * time.Minute, Execute: 5 * time.Minute, CoolDown: 10 * time.Minute,
		MaxPending: 5, MaxAsked: 30, AskedWindow: time.Hour, Source: sqlstore.SQLite,
	}
}

// FromFile returns the service's part of the configuration.
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
	cfg.Notices, err = noticesFrom(f, env)
	return cfg, err
}

// Validate returns everything that is wrong with the configuration.
func (c *Config) Validate() error {
	var errs []error
	if c.Decide <= 0 || c.Execute <= 0 || c.CoolDown < 0 {
		errs = append(errs, errors.New("approval: the times to decide and to execute must be positive"))
	}
	if c.MaxPending < 1 {
		errs = append(errs, errors.New("approval: a principal must be allowed at least one pending call"))
	}
	if c.MaxAsked < 1 || c.AskedWindow < time.Second || c.AskedWindow > config.MaxAskedWindow {
		errs = append(errs, errors.New("approval: a principal must be allowed at least one question, in 1 s to 24 h"))
	}
	if c.Source == "" || c.Source == sqlstore.SQLite && c.Data == "" {
		errs = append(errs, errors.New("approval: there must be a store"))
	}
	return errors.Join(append(errs, c.Notices.Validate())...)
}
