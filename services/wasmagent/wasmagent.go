// Package wasmagent serves sluice.wasmagent.v1: agents in WebAssembly sandboxes. An agent computes and asks for
// effects; the service carries out or refuses each effect.
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

// WorkerMain runs the program as a worker and does not return, if the program was started as a worker. Otherwise it
// returns at once. Each program that contains this role calls it first in its main function.
func WorkerMain() { worker.Main() }

const (
	// maxAgents bounds the number of all agents, and maxOwn the number of those that one principal created. Both count
	// ended agents that can be resumed.
	maxAgents = 10_000
	maxOwn    = 1000
	// maxBytes bounds the stored size of all agents, and maxOwnBytes that of one person's agents, in bytes. The size
	// includes files, conversations, snapshots and journals.
	maxBytes    = 16 << 30
	maxOwnBytes = 2 << 30
	// sweepTime is the interval at which expired records are removed.
	sweepTime = time.Minute
	// renewTime is the interval at which this process renews its leases on turns.
	renewTime = store.Lease / 3
	// maxHeldBytes bounds the snapshots of all guests that gave their places away while they wait for calls, in bytes,
	// and maxOwnHeldBytes those of one person.
	maxHeldBytes    = 256 << 20
	maxOwnHeldBytes = 64 << 20
	// defaultYield is how long a turn waits for a call before its guest gives its place away.
	defaultYield = 250 * time.Millisecond
	// defaultQuestionTime is the time limit of one question to a model.
	defaultQuestionTime = 10 * time.Minute
	// workerMemory is the least memory of a worker, guestMemory the default of one guest, and compileMemory and
	// compileTime bound the compilation of a module. Memory is in bytes.
	workerMemory  = 768 << 20
	guestMemory   = 32 << 20
	compileMemory = 768 << 20
	compileTime   = time.Minute
)

// Config configures the service.
type Config struct {
	// Data is the folder in which the role stores its files.
	Data string
	// Source is the database of the agents: `sqlite`, or the URL of a PostgreSQL database; empty means `sqlite`. Bucket
	// is the URL of a bucket for their states; empty means a folder below Data.
	Source, Bucket string
	// Workers is the number of processes that run guests; 0 means 1.
	Workers int
	// Program is the file to start as a worker; its main function calls [WorkerMain]. Empty means the running program.
	Program string
	// Models are the providers of models, by name. Model is the default model of agents, as `provider:name`; it may be
	// empty.
	Models map[string]models.Provider
	Model  string
	// PersonDay bounds the use of models by all agents of one person in a day.
	PersonDay PersonDay
	// Server is the name under which the gateway lists this service as an MCP server. If it is empty, agents cannot ask
	// models.
	Server string
	// Accepts are the public keys of other installations whose archives may be imported.
	Accepts []ed25519.PublicKey
	// Turns bounds the turns, for each worker, and Questions the questions to models. Defaults of Turns: 18 places, 6
	// of one person; 256 waiting, 32 of one person, for 5 min. Defaults of Questions: 32, 8, 256, 64 and 5 min.
	Turns, Questions Places
	// QuestionTime is the time limit of one question, with its retries; 0 means 10 min. AnswerTime is how long a
	// provider may take until its answer begins; 0 means 2 min.
	QuestionTime, AnswerTime time.Duration
	// Yield is how long a turn waits for a call before its guest gives its place away, for tests; 0 means 250 ms.
	Yield time.Duration
	// OwnBytes bounds the stored size of one person's agents, in bytes, for tests; 0 means 2 GiB.
	OwnBytes int64
	// Guests are the guests that agents may run in addition to the shipped ones, by name.
	Guests map[string]modules.Listed
	// Hold is how long the caller of a prompt waits for an approver's decision on a call of the agent. After that, the
	// prompt continues without its caller.
	Hold time.Duration
}

// Deps are the live objects that a [Service] works with. All are required.
type Deps struct {
	// Gateway makes the agents' tool calls. Its context carries the agent's principal, see [authn.OnBehalfOf].
	Gateway gatewayv1.GatewayServiceClient
	// Log receives the service's log records.
	Log *slog.Logger
}

// Service implements wasmagentv1.AgentServiceServer, wasmagentv1.GalleryServiceServer and
// wasmagentv1.ModelServiceServer.
type Service struct {
	wasmagentv1.UnimplementedAgentServiceServer

	dir      *datadir.Dir
	gallery  *gallery.Gallery
	guests   *modules.Guests
	workers  *worker.Supervisor
	gateway  gatewayv1.GatewayServiceClient
	hold     time.Duration
	ownBytes int64
	log      *slog.Logger

	models *models.Models
	model  string
	server string
	asks   *queue
	day    dayBound
	// questionTime is the time limit of one question; yield is as in Config.
	questionTime, yield time.Duration
	store               *store.Store
	shelf               *shelf
	// keys sign and verify archives. packs is a semaphore that allows one call at a time to write or read an archive.
	keys  archiveKeys
	packs chan struct{}

	// prompts has the places of guests, and held the snapshots of guests that gave their places away.
	prompts *queue
	held    room

	// background counts the goroutines that outlive the call that started them. They end when closing is closed.
	background sync.WaitGroup
	closing    chan struct{}

	// compiling is a semaphore that allows one compilation at a time. Its holder may use refused, which has the errors
	// of modules that can't be compiled, by digest.
	compiling chan struct{}
	refused   map[string]error
	// stored has the digests of the modules that this process has stored.
	stored sync.Map
	// swept is the day on which unused modules were last removed, in days since 1970-01-01 UTC.
	swept int64
}

// New returns a Service. The caller closes the service.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Gateway == nil || deps.Log == nil || cfg.Data == "" {
		return nil, errors.New("wasmagent: a folder, the gateway and a log are required")
	}
	cfg.Workers = max(cfg.Workers, 1)
	program := cfg.Program
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program, to start workers: %w", err)
		}
	}
	runs, err := modules.New(cfg.Guests)
	if err != nil {
		return nil, err
	}
	turns, questions, err := cfg.places()
	if err != nil {
		return nil, err
	}
	known, err := models.New(cfg.Models, cfg.AnswerTime)
	if err != nil {
		return nil, err
	}
	if cfg.Model != "" && !known.Has(cfg.Model) {
		return nil, fmt.Errorf("agents.model: %q names no provider of agents.providers: write provider:name", cfg.Model)
	}
	day, err := cfg.PersonDay.bound()
	if err != nil {
		return nil, err
	}
	dir, err := datadir.Open(cfg.Data, "wasmagent")
	if err != nil {
		return nil, err
	}
	workers, err := worker.NewSupervisor(worker.Config{
		Program: program, Cache: dir.Path("compiled"), Workers: cfg.Workers, Guests: turns.All / cfg.Workers, Memory: max(workerMemory, int64(turns.All/cfg.Workers)*guestMemory/3*4), CompileTime: compileTime, CompileMemory: compileMemory,
	}, deps.Log)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	kept, err := store.Open(context.Background(), store.Config{
		Source: cmp.Or(cfg.Source, sqlstore.SQLite), File: dir.Path("agents.db"), Bucket: cfg.Bucket, Folder: dir.Path("states"), Holder: rand.Text(), Log: deps.Log,
	})
	if err != nil {
		return nil, errors.Join(err, workers.Close(), dir.Close())
	}
	keys, err := loadKeys(context.Background(), kept, dir.Path("archive.key"), cfg.Accepts)
	if err == nil {
		err = os.RemoveAll(dir.Path("archives")) // earlier releases stored archives there
	}
	if err != nil {
		return nil, errors.Join(err, kept.Close(), workers.Close(), dir.Close())
	}
	templates, err := gallery.New(context.Background(), kept, cfg.Server)
	if err != nil {
		return nil, errors.Join(err, kept.Close(), workers.Close(), dir.Close())
	}
	s := &Service{
		dir: dir, gallery: templates, guests: runs, workers: workers, gateway: deps.Gateway, hold: cfg.Hold, ownBytes: cmp.Or(cfg.OwnBytes, maxOwnBytes), log: deps.Log, store: kept,
		models: known, model: cfg.Model, server: cfg.Server, asks: newQueue(questions), day: day,
		questionTime: cmp.Or(cfg.QuestionTime, defaultQuestionTime), yield: cmp.Or(cfg.Yield, defaultYield),
		keys: keys, packs: make(chan struct{}, 1),
		prompts: newQueue(turns), held: room{all: maxHeldBytes, own: maxOwnHeldBytes}, compiling: make(chan struct{}, 1), refused: make(map[string]error),
		closing: make(chan struct{}),
	}
	s.shelf = newShelf(kept, func(ctx context.Context, row *store.Row) (*agent.Agent, error) {
		mayRun := true
		if row.Turn == store.Alone && !row.Held { // [agent.Open] continues the turn at once
			err := s.ready(ctx, row.GetGuest(), row.GetModuleDigest())
			if err != nil && !isGone(err) { // the module may be available later, or in another process
				return nil, err
			}
			mayRun = err == nil
		}
		return agent.Open(ctx, row, s.deps(), mayRun)
	})
	return s, nil
}

// places returns the places for turns, of all workers together, and those for questions.
func (c Config) places() (turns, questions Places, err error) {
	turns = c.Turns.or(Places{All: 18, Person: 6, Queue: 256, PersonQueue: 32, Wait: 5 * time.Minute})
	questions = c.Questions.or(Places{All: 32, Person: 8, Queue: 256, PersonQueue: 64, Wait: 5 * time.Minute})
	if err := errors.Join(turns.validate("turns"), questions.validate("questions")); err != nil {
		return turns, questions, err
	}
	turns.All, turns.Person = turns.All*c.Workers, turns.Person*c.Workers
	return turns, questions, nil
}

func (s *Service) deps() agent.Deps {
	return agent.Deps{Workers: s.workers, Host: host{s}, Store: s.store, Yield: s.yield}
}

// Register implements rpc.Service.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	wasmagentv1.RegisterAgentServiceServer(r, s)
	wasmagentv1.RegisterGalleryServiceServer(r, galleryServer{Service: s})
	wasmagentv1.RegisterModelServiceServer(r, modelServer{Service: s})
}

// Run implements app.Runner. It continues turns whose processes have ended, renews the leases of this process, and
// removes expired records.
func (s *Service) Run(ctx context.Context) error {
	var renewing sync.WaitGroup
	renewing.Go(func() { s.renew(ctx) }) // separately, because the other tasks may take long
	defer renewing.Wait()
	var sweep time.Time
	for {
		s.goOn(ctx)
		if now := time.Now(); now.Sub(sweep) >= sweepTime {
			s.sweep(ctx)
			sweep = now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(renewTime):
		}
	}
}

// renew renews the leases on the turns of this process. It cancels a turn if another process has taken over the agent.
func (s *Service) renew(ctx context.Context) {
	behind := make(map[string]int64) // versions in memory of the agents that were older than their rows at the last check
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(renewTime):
		}
		if !s.store.Shared {
			continue
		}
		var here []string
		for _, a := range s.shelf.working() {
			here = append(here, a.ID)
			version, err := s.store.Version(ctx, a.ID)
			now := a.Version()
			switch was, found := behind[a.ID]; {
			case err != nil || version <= now:
				delete(behind, a.ID)
			case found && was == now: // a commit of this process would have completed since the last check
				delete(behind, a.ID)
				a.Lose()
			default:
				behind[a.ID] = now
			}
		}
		if err := s.store.Renew(ctx, here); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "the leases on turns can't be renewed", "error", err)
		}
	}
}

// goOn continues turns whose processes have ended.
func (s *Service) goOn(ctx context.Context) {
	left, err := s.store.Left(ctx)
	for _, id := range left {
		if a := s.shelf.here(id); a != nil && a.Works() {
			continue
		}
		if _, err := s.shelf.get(ctx, id); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "a turn whose process has ended can't be continued", "agent", id, "error", err)
		}
	}
	if err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "turns whose processes have ended can't be listed", "error", err)
	}
}

// sweep removes expired records.
func (s *Service) sweep(ctx context.Context) {
	if err := s.store.ForgetDays(ctx, today(time.Now())-1); err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "the use of models on past days can't be removed", "error", err)
	}
	if err := s.store.ForgetUsed(ctx); err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "counters of agents that are gone can't be removed", "error", err)
	}
	if day := today(time.Now()); day != s.swept { // ForgetModules reads all agents
		s.swept = day
		if err := s.store.ForgetModules(ctx); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "modules that no agent runs can't be removed", "error", err)
		}
	}
	gone, err := s.store.Gone(ctx)
	for _, id := range gone {
		err = errors.Join(err, s.forget(ctx, id, true))
	}
	if err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "ended agents can't be removed", "error", err)
	}
}

// forget removes an agent that has ended. If gone is set, it removes only an agent that can't be resumed any more.
func (s *Service) forget(ctx context.Context, id string, gone bool) error {
	ended, err := s.store.Forget(ctx, id, gone)
	if ended {
		s.shelf.drop(id)
	}
	return err
}

// Close cancels running turns, stops the workers, and closes the store and the folder.
func (s *Service) Close() error {
	var ends sync.WaitGroup
	for _, a := range s.shelf.working() {
		ends.Go(a.Shut)
	}
	ends.Wait()
	close(s.closing)
	s.background.Wait()
	return errors.Join(s.workers.Close(), s.store.Close(), s.dir.Close())
}

// room returns an error unless the agents of a person may grow. To make space, it removes ended agents, the oldest
// first. An agent may grow by some megabytes before room is called again.
func (s *Service) room(ctx context.Context, of principal.Key) error {
	all, own, err := s.store.Sizes(ctx, of)
	if err != nil || own <= s.ownBytes && all <= maxBytes {
		return err
	}
	ended, err := s.store.Ended(ctx, of)
	if err != nil {
		return err
	}
	for _, id := range ended {
		if err := s.forget(ctx, id, false); err != nil {
			return err
		}
		if all, own, err = s.store.Sizes(ctx, of); err != nil || own <= s.ownBytes && all <= maxBytes {
			return err
		}
	}
	return fmt.Errorf("%w: %d MiB of one caller, %d MiB in all", errRoom, s.ownBytes>>20, int64(maxBytes)>>20)
}
