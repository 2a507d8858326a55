// Package wasmagent serves sluice.wasmagent.v1. It runs agents in WebAssembly sandboxes. An agent computes and requests
// effects, and the service carries out or refuses each effect.
package wasmagent

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/datadir"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/gallery"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/models"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/modules"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/worker"
)

// WorkerMain returns immediately, unless the program was started as a worker. In that case, WorkerMain runs the worker
// and never returns. The function main of each program that contains this service must call WorkerMain before anything
// else.
func WorkerMain() { worker.Main() }

const (
	// maxAgents limits how many agents may exist in total, and maxAgentsPerPerson limits how many of them may belong to
	// one person. Terminated agents count while they can still be resumed.
	maxAgents          = 10_000
	maxAgentsPerPerson = 1000
	// maxStoredBytes limits the stored size of all agents together, and maxStoredBytesPerPerson limits that of one
	// person's agents. Both are in bytes. The stored size includes files, conversations, snapshots and journals.
	maxStoredBytes          = 16 << 30
	maxStoredBytesPerPerson = 2 << 30
	sweepInterval           = time.Minute
	// renewInterval is how often this process renews its leases on turns.
	renewInterval = store.Lease / 3
	// maxSnapshotBytes limits the total size of the snapshots of guests that have released their slots while they wait
	// for calls. maxSnapshotBytesPerPerson limits that size for the guests of one person. Both are in bytes.
	maxSnapshotBytes          = 256 << 20
	maxSnapshotBytesPerPerson = 64 << 20
	// defaultYieldAfter is the default of YieldAfter in [Config].
	defaultYieldAfter = 250 * time.Millisecond
	// defaultQuestionTimeout is the default timeout for one question to a model.
	defaultQuestionTimeout = 10 * time.Minute
	// workerMemory is the least memory that a worker gets, and guestMemory is the default memory of a guest.
	// compileMemory limits the memory for compiling a module, and compileTime limits the time. Memory sizes are in
	// bytes.
	workerMemory  = 768 << 20
	guestMemory   = 32 << 20
	compileMemory = 768 << 20
	compileTime   = time.Minute
)

// Config configures the service.
type Config struct {
	// Data is the directory in which the service stores its files.
	Data string
	// Source is the database that stores the agents. It is `sqlite` or the URL of a PostgreSQL database. If it is
	// empty, it means `sqlite`. Bucket is the URL of the bucket that stores the agents' states. If it is empty, the
	// states are stored in a directory below Data.
	Source, Bucket string
	// Workers is how many processes run guests. 0 means 1.
	Workers int
	// Program is the path of the program that is started as a worker. The program's function main must call
	// [WorkerMain]. If the path is empty, the running program is used.
	Program string
	// Models maps the names of the model providers to the providers. Model is the default model of agents, as
	// `provider:name`, and may be empty.
	Models map[string]models.Provider
	Model  string
	// PersonDay limits how much one person's agents may use models per day, all together.
	PersonDay PersonDay
	// Server is the name under which the gateway lists this service as an MCP server. If it is empty, agents can't ask
	// models.
	Server string
	// AcceptedKeys contains the public keys of other installations. Archives that are signed with one of these keys may
	// be imported.
	AcceptedKeys []ed25519.PublicKey
	// Turns limits how many turns run at the same time per worker, and Questions limits how many questions to models
	// do. The defaults of Turns are 18 slots (6 per person), and 256 waiting turns (32 per person) that wait for at
	// most 5 min. The defaults of Questions are 32 slots (8 per person), and 256 waiting questions (64 per person) that
	// wait for at most 5 min.
	Turns, Questions ConcurrencyLimits
	// QuestionTimeout is the timeout of one question, including its retries. 0 means 10 min. FirstByteTimeout limits
	// how long a provider may take until its answer begins. 0 means 2 min.
	QuestionTimeout, FirstByteTimeout time.Duration
	// YieldAfter is how long a turn waits for the result of a call before the turn's guest releases its slot. 0 means
	// 250 ms. Only tests set it.
	YieldAfter time.Duration
	// MaxBytesPerPerson limits the stored size of one person's agents, in bytes. 0 means 2 GiB. Only tests set it.
	MaxBytesPerPerson int64
	// Guests maps names to the guests that agents may run in addition to the shipped guests.
	Guests map[string]modules.Listed
	// ApprovalWait limits how long the caller of a prompt waits while a call of the agent needs an approval. After
	// that, the caller receives a response, and the turn continues in the background.
	ApprovalWait time.Duration
}

// Deps contains the dependencies of a [Service]. All fields are required.
type Deps struct {
	// Gateway makes the agents' tool calls. The context of each call contains the agent's principal (see
	// [authn.OnBehalfOf]).
	Gateway gatewayv1.GatewayServiceClient
	// Log receives the service's log records.
	Log *slog.Logger
}

// Service implements wasmagentv1.AgentServiceServer, wasmagentv1.GalleryServiceServer and
// wasmagentv1.ModelServiceServer.
type Service struct {
	wasmagentv1.UnimplementedAgentServiceServer

	dir               *datadir.Dir
	gallery           *gallery.Gallery
	guests            *modules.Guests
	workers           *worker.Supervisor
	gateway           gatewayv1.GatewayServiceClient
	approvalWait      time.Duration
	maxBytesPerPerson int64
	log               *slog.Logger

	models         *models.Models
	model          string
	server         string
	questionQueue  *queue
	personDayLimit dayLimit
	// questionTimeout is the timeout of one question. yieldAfter is the configured or default time after which a guest
	// that waits for a call releases its slot.
	questionTimeout, yieldAfter time.Duration
	store                       *store.Store
	agents                      *agentCache
	// archiveKeys contains the keys that sign and verify archives. archiving is a semaphore that allows one call at a
	// time to write or read an archive.
	archiveKeys archiveKeys
	archiving   chan struct{}

	// turnQueue grants slots to turns. snapshotMemory limits the memory for snapshots of guests that have released
	// their slots.
	turnQueue      *queue
	snapshotMemory memoryBudget

	// background waits for the goroutines that continue after the calls that started them have returned. These
	// goroutines end when closing is closed.
	background sync.WaitGroup
	closing    chan struct{}

	// compiling is a semaphore that allows one compilation at a time. It also guards compileErrors, which maps the
	// digests of modules that can't be compiled to the errors of their compilation.
	compiling     chan struct{}
	compileErrors map[string]error
	// storedModules is the set of digests of the modules that this process has stored.
	storedModules sync.Map
	// modulesSweptOn is the day on which unused modules were last removed, in days since 1970-01-01 UTC.
	modulesSweptOn int64
}

// New returns a Service, which the caller must close.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Gateway == nil || deps.Log == nil || cfg.Data == "" {
		return nil, errors.New("wasmagent: a folder, the gateway and a log are required")
	}
	cfg.Workers = max(cfg.Workers, 1)
	if cfg.Program == "" {
		var err error
		if cfg.Program, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program, to start workers: %w", err)
		}
	}
	s := &Service{
		gateway: deps.Gateway, log: deps.Log, model: cfg.Model, server: cfg.Server, approvalWait: cfg.ApprovalWait,
		maxBytesPerPerson: cmp.Or(cfg.MaxBytesPerPerson, maxStoredBytesPerPerson), questionTimeout: cmp.Or(cfg.QuestionTimeout, defaultQuestionTimeout),
		yieldAfter: cmp.Or(cfg.YieldAfter, defaultYieldAfter), snapshotMemory: memoryBudget{total: maxSnapshotBytes, perPerson: maxSnapshotBytesPerPerson},
		archiving: make(chan struct{}, 1), compiling: make(chan struct{}, 1), compileErrors: make(map[string]error), closing: make(chan struct{}),
	}
	if err := s.configure(cfg); err != nil {
		return nil, err
	}
	if err := s.open(cfg); err != nil {
		return nil, err
	}
	s.agents = newAgentCache(s.store, s.openAgent)
	return s, nil
}

// configure checks the configuration and sets the fields that depend only on the configuration.
func (s *Service) configure(cfg Config) (err error) {
	if s.guests, err = modules.New(cfg.Guests); err != nil {
		return err
	}
	turns, questions, err := cfg.concurrencyLimits()
	if err != nil {
		return err
	}
	s.turnQueue, s.questionQueue = newQueue(turns), newQueue(questions)
	if s.models, err = models.New(cfg.Models, cfg.FirstByteTimeout); err != nil {
		return err
	}
	if cfg.Model != "" && !s.models.Has(cfg.Model) {
		return fmt.Errorf("agents.model: %q names no provider of agents.providers: write provider:name", cfg.Model)
	}
	s.personDayLimit, err = cfg.PersonDay.limit()
	return err
}

// open opens the data directory, the worker supervisor and the store, and reads the templates. If open fails, it closes
// everything that it has opened.
func (s *Service) open(cfg Config) (err error) {
	ctx := context.Background()
	closeAfterError := func(closeFunc func() error) {
		if err != nil {
			err = errors.Join(err, closeFunc())
		}
	}
	if s.dir, err = datadir.Open(cfg.Data, "wasmagent"); err != nil {
		return err
	}
	defer closeAfterError(s.dir.Close)
	if s.workers, err = worker.NewSupervisor(s.workerConfig(cfg), s.log); err != nil {
		return err
	}
	defer closeAfterError(s.workers.Close)
	if s.store, err = store.Open(ctx, store.Config{
		Source: cmp.Or(cfg.Source, sqlstore.SQLite), File: s.dir.Path("agents.db"), Bucket: cfg.Bucket, Folder: s.dir.Path("states"), Holder: rand.Text(), Log: s.log,
	}); err != nil {
		return err
	}
	defer closeAfterError(s.store.Close)
	if s.archiveKeys, err = loadArchiveKeys(ctx, s.store, s.dir.Path("archive.key"), cfg.AcceptedKeys); err != nil {
		return err
	}
	if err = os.RemoveAll(s.dir.Path("archives")); err != nil { // earlier releases stored archives there
		return err
	}
	s.gallery, err = gallery.New(ctx, s.store, cfg.Server)
	return err
}

func (s *Service) workerConfig(cfg Config) worker.Config {
	guests := s.turnQueue.Total / cfg.Workers
	return worker.Config{
		Program: cfg.Program, Cache: s.dir.Path("compiled"), Workers: cfg.Workers, Guests: guests, Memory: max(workerMemory, int64(guests)*guestMemory/3*4),
		CompileTime: compileTime, CompileMemory: compileMemory,
	}
}

// openAgent creates an agent from a row of the store. The agent cache calls it to load agents.
func (s *Service) openAgent(ctx context.Context, row *store.Row) (*agent.Agent, error) {
	mayRun := true
	if row.Turn == store.DetachedTurn && !row.HeldElsewhere { // [agent.Open] continues the turn immediately
		err := s.ensureModule(ctx, row.GetGuest(), row.GetModuleDigest())
		if err != nil && !isPermanentModuleError(err) { // the module may be available later, or in another process
			return nil, err
		}
		mayRun = err == nil
	}
	return agent.Open(ctx, row, s.deps(), mayRun)
}

func (c Config) concurrencyLimits() (turns, questions ConcurrencyLimits, err error) {
	turns = c.Turns.withDefaults(ConcurrencyLimits{Total: 18, PerPerson: 6, MaxQueued: 256, MaxQueuedPerPerson: 32, MaxWait: 5 * time.Minute})
	questions = c.Questions.withDefaults(ConcurrencyLimits{Total: 32, PerPerson: 8, MaxQueued: 256, MaxQueuedPerPerson: 64, MaxWait: 5 * time.Minute})
	if err := errors.Join(turns.validate("turns"), questions.validate("questions")); err != nil {
		return turns, questions, err
	}
	turns.Total, turns.PerPerson = turns.Total*c.Workers, turns.PerPerson*c.Workers
	return turns, questions, nil
}

func (s *Service) deps() agent.Deps {
	return agent.Deps{Workers: s.workers, Host: host{s}, Store: s.store, YieldAfter: s.yieldAfter}
}

// Register implements rpc.Service.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	wasmagentv1.RegisterAgentServiceServer(r, s)
	wasmagentv1.RegisterGalleryServiceServer(r, galleryServer{Service: s})
	wasmagentv1.RegisterModelServiceServer(r, modelServer{Service: s})
}

// Run implements app.Runner. It takes over the turns of processes that have ended, renews this process's leases, and
// removes expired records.
func (s *Service) Run(ctx context.Context) error {
	var renewing sync.WaitGroup
	renewing.Go(func() { s.renewLeases(ctx) }) // in a goroutine of its own, because the other tasks may take long
	defer renewing.Wait()
	var sweep time.Time
	for {
		s.continueTurns(ctx)
		if now := time.Now(); now.Sub(sweep) >= sweepInterval {
			s.sweep(ctx)
			sweep = now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(renewInterval):
		}
	}
}

// renewLeases renews the leases on the turns that run in this process. If another process has taken over an agent,
// renewLeases cancels the agent's turn.
func (s *Service) renewLeases(ctx context.Context) {
	outdated := make(map[string]int64) // versions of cached agents that were outdated at the last check
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(renewInterval):
		}
		if !s.store.IsShared {
			continue
		}
		var running []string
		for _, a := range s.agents.withTurns() {
			running = append(running, a.ID)
			version, err := s.store.Version(ctx, a.ID)
			now := a.Version()
			switch earlier, found := outdated[a.ID]; {
			case err != nil || version <= now:
				delete(outdated, a.ID)
			case found && earlier == now: // a pending commit would have completed since the last check
				delete(outdated, a.ID)
				a.Invalidate()
			default:
				outdated[a.ID] = now
			}
		}
		if err := s.store.RenewLeases(ctx, running); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "the leases on turns can't be renewed", "error", err)
		}
	}
}

// Busy implements [app.Busier]. The service is busy while an agent has a turn in this process.
func (s *Service) Busy(context.Context) (string, error) {
	if n := len(s.agents.withTurns()); n > 0 {
		return fmt.Sprintf("%d agent(s) with a turn", n), nil
	}
	return "", nil
}

// continueTurns takes over the turns of processes that have ended.
func (s *Service) continueTurns(ctx context.Context) {
	abandoned, err := s.store.AbandonedTurns(ctx)
	for _, id := range abandoned {
		if a := s.agents.lookup(id); a != nil && a.HasTurn() {
			continue
		}
		if _, err := s.agents.get(ctx, id); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "a turn whose process has ended can't be continued", "agent", id, "error", err)
		}
	}
	if err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "turns whose processes have ended can't be listed", "error", err)
	}
}

func (s *Service) sweep(ctx context.Context) {
	if err := s.store.RemoveDays(ctx, dayNumber(time.Now())-1); err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "the use of models on past days can't be removed", "error", err)
	}
	if err := s.store.RemoveUnusedCounters(ctx); err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "counters of agents that are gone can't be removed", "error", err)
	}
	if day := dayNumber(time.Now()); day != s.modulesSweptOn { // once a day, because RemoveUnusedModules reads all agents
		s.modulesSweptOn = day
		if err := s.store.RemoveUnusedModules(ctx); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "modules that no agent runs can't be removed", "error", err)
		}
	}
	expired, err := s.store.ExpiredAgents(ctx)
	for _, id := range expired {
		err = errors.Join(err, s.removeAgent(ctx, id, true))
	}
	if err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "ended agents can't be removed", "error", err)
	}
}

// removeAgent removes an agent that has ended. If onlyExpired is true, removeAgent removes the agent only if the agent
// can no longer be resumed.
func (s *Service) removeAgent(ctx context.Context, id string, onlyExpired bool) error {
	ended, err := s.store.RemoveAgent(ctx, id, onlyExpired)
	if ended {
		s.agents.remove(id)
	}
	return err
}

// Close cancels running turns, stops the workers, and closes the store and the data directory.
func (s *Service) Close() error {
	var ends sync.WaitGroup
	for _, a := range s.agents.withTurns() {
		ends.Go(a.Shutdown)
	}
	ends.Wait()
	close(s.closing)
	s.background.Wait()
	return errors.Join(s.workers.Close(), s.store.Close(), s.dir.Close())
}

// ensureSpace returns an error if a person's agents, or all agents together, have reached the storage limit. To make
// space, it first removes the person's terminated agents, oldest first. The limit is approximate, because an agent may
// grow by some megabytes before the next check.
func (s *Service) ensureSpace(ctx context.Context, person principal.Key) error {
	all, own, err := s.store.StoredSizes(ctx, person)
	if err != nil || own <= s.maxBytesPerPerson && all <= maxStoredBytes {
		return err
	}
	ended, err := s.store.EndedAgents(ctx, person)
	if err != nil {
		return err
	}
	for _, id := range ended {
		if err := s.removeAgent(ctx, id, false); err != nil {
			return err
		}
		if all, own, err = s.store.StoredSizes(ctx, person); err != nil || own <= s.maxBytesPerPerson && all <= maxStoredBytes {
			return err
		}
	}
	return fmt.Errorf("%w: %d MiB of one caller, %d MiB in all", errStoreFull, s.maxBytesPerPerson>>20, int64(maxStoredBytes)>>20)
}
