// Package wasmagent serves sluice.wasmagent.v1: agents in WebAssembly that do nothing by
// themselves. What they ask for is done by their host, or not at all.
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
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/guests"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/models"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/worker"
)

// WorkerMain becomes a worker where the program was started as one, and then does not
// return. The main function of each program that builds this role calls it first.
func WorkerMain() { worker.Main() }

const (
	// maxAgents is how many agents there may be, and maxOwn how many one principal may
	// have made, with those that ended and can be brought back.
	maxAgents = 10_000
	maxOwn    = 1000
	// maxBytes is how much all agents may be together as they are kept, in bytes, and
	// maxOwnBytes how much those of one principal: their files, conversations, snapshots and
	// journals.
	maxBytes    = 16 << 30
	maxOwnBytes = 2 << 30
	// sweepTime is how often what has ended for good is forgotten.
	sweepTime = time.Minute
	// renewTime is how often other processes are told that this one works on its turns.
	renewTime = store.Lease / 3
	// maxHeldBytes is how much the snapshots of guests have together that gave their places away while they
	// wait for calls, in bytes, and maxOwnHeldBytes how much those of one person.
	maxHeldBytes    = 256 << 20
	maxOwnHeldBytes = 64 << 20
	// defaultYield is how long a turn waits for a call until its guest gives its place away.
	defaultYield = 250 * time.Millisecond
	// defaultQuestionTime is how long one question to a model may take.
	defaultQuestionTime = 10 * time.Minute
	// What a worker may have at the least, and what compiling a module may take.
	workerMemory  = 768 << 20
	guestMemory   = 32 << 20
	compileMemory = 768 << 20
	compileTime   = time.Minute
)

// Config configures the service.
type Config struct {
	// Data is the folder in which the role keeps its state.
	Data string
	// Source is where agents are kept: `sqlite`, or the URL of a PostgreSQL database; empty
	// means `sqlite`. Bucket is the URL of a bucket for their states; empty means a folder.
	Source, Bucket string
	// Workers is how many processes guests run in; 0 means 1.
	Workers int
	// Program is what is started as a worker: one that calls [WorkerMain]. Empty: the file
	// that runs.
	Program string
	// Models are the providers of models by name, and Model the one that agents ask which name
	// none, as `provider:name`; may be empty.
	Models map[string]models.Provider
	Model  string
	// PersonDay bounds what all agents of one person may use of models in a day.
	PersonDay PersonDay
	// Server is the name by which the gateway knows this service as a server of tools; empty
	// where it does not: then no model is asked.
	Server string
	// Accepts are the public keys of others whose archives may be imported.
	Accepts []ed25519.PublicKey
	// Turns are the places for turns, for each worker; questions to models wait in Questions. Defaults: 18 places, 6
	// of one person, 256 that wait, 32 of one person, for 5 min; for questions 32, 8, 256, 64 and 5 min.
	Turns, Questions Places
	// QuestionTime is how long one question may take, with its retries; 0 means 10 min. AnswerTime is how long a
	// provider may take until its answer begins; 0 means 2 min.
	QuestionTime, AnswerTime time.Duration
	// Yield is how long a turn waits for a call until its guest gives its place away, for tests; 0 means 250 ms.
	Yield time.Duration
	// OwnBytes is how much the agents of one person may be together as they are kept, for
	// tests; 0 means 2 GiB.
	OwnBytes int64
	// Guests are those that agents may run beside the shipped ones, by name.
	Guests map[string]guests.Listed
	// Hold is for how long whoever prompts waits while people decide on what the agent asks
	// for; then the prompt goes on alone.
	Hold time.Duration
}

// Deps are the live objects that a [Service] works with. All are required.
type Deps struct {
	// Gateway is how agents call tools. Calls on it carry the principal of
	// [authn.OnBehalfOf].
	Gateway gatewayv1.GatewayServiceClient
	// Log receives what people are to know.
	Log *slog.Logger
}

// Service implements wasmagentv1.AgentServiceServer and, beside it,
// wasmagentv1.GalleryServiceServer.
type Service struct {
	wasmagentv1.UnimplementedAgentServiceServer

	dir      *datadir.Dir
	gallery  *gallery.Gallery
	guests   *guests.Guests
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
	// questionTime is how long one question may take, and yield as in Config.
	questionTime, yield time.Duration
	store               *store.Store
	shelf               *shelf
	// keys are those of archives. packs has an element while an archive is written or read.
	keys  archiveKeys
	packs chan struct{}

	// prompts has the places of guests, and held the snapshots of those that gave theirs away.
	prompts *queue
	held    room

	// background has what goes on after the call that began it, until closing is closed.
	background sync.WaitGroup
	closing    chan struct{}

	// compiling has somebody in it while a guest is compiled. refused is why modules are not,
	// by their digests: whoever is in it has that, too.
	compiling chan struct{}
	refused   map[string]error
	// stored has the digests of modules that this process has stored.
	stored sync.Map
	// swept is the day on which unused modules were removed last.
	swept int64
}

// New returns a Service, which the caller closes.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Gateway == nil || deps.Log == nil || cfg.Data == "" {
		return nil, errors.New("wasmagent: a folder, the gateway and a log are required")
	}
	cfg.Workers = max(cfg.Workers, 1)
	program := cfg.Program
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program, which its workers are: %w", err)
		}
	}
	runs, err := guests.New(cfg.Guests)
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
		return nil, fmt.Errorf("agents.model: %q is of no provider under agents.providers; write provider:name", cfg.Model)
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
		err = os.RemoveAll(dir.Path("archives")) // of releases that stored archives there
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
		if row.Turn == store.Alone && !row.Held { // it runs at once
			err := s.ready(ctx, row.GetGuest(), row.GetModuleDigest())
			if err != nil && !isGone(err) { // it may be there later, or elsewhere
				return nil, err
			}
			mayRun = err == nil
		}
		return agent.Open(ctx, row, s.deps(), mayRun)
	})
	return s, nil
}

// places are those of turns, of all workers, and those of questions.
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

// Run implements app.Runner: it goes on with turns that were left, says that it works on those
// that it does, and forgets what has ended for good.
func (s *Service) Run(ctx context.Context) error {
	var renewing sync.WaitGroup
	renewing.Go(func() { s.renew(ctx) }) // whatever else takes long
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

// renew says that this process works on the turns that it does, and ends those that another one
// has taken over.
func (s *Service) renew(ctx context.Context) {
	behind := make(map[string]int64) // versions that were older than the store's as they were looked at last
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
			case found && was == now: // it is no commit of its own whose answer is on its way
				delete(behind, a.ID)
				a.Lose()
			default:
				behind[a.ID] = now
			}
		}
		if err := s.store.Renew(ctx, here); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "other processes can't be told which turns this one works on", "error", err)
		}
	}
}

// goOn goes on with turns that their processes have left.
func (s *Service) goOn(ctx context.Context) {
	left, err := s.store.Left(ctx)
	for _, id := range left {
		if a := s.shelf.here(id); a != nil && a.Works() {
			continue
		}
		if _, err := s.shelf.get(ctx, id); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "a turn that was left can't be gone on with", "agent", id, "error", err)
		}
	}
	if err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "turns can't be gone on with", "error", err)
	}
}

// sweep forgets what has ended for good.
func (s *Service) sweep(ctx context.Context) {
	if err := s.store.ForgetDays(ctx, today(time.Now())-1); err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "what persons used of models on past days can't be removed", "error", err)
	}
	if err := s.store.ForgetUsed(ctx); err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "counters of agents that are gone can't be removed", "error", err)
	}
	if day := today(time.Now()); day != s.swept { // it reads all agents
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
		s.log.WarnContext(ctx, "agents that ended can't be forgotten", "error", err)
	}
}

func (s *Service) forget(ctx context.Context, id string, gone bool) error {
	ended, err := s.store.Forget(ctx, id, gone)
	if ended {
		s.shelf.drop(id)
	}
	return err
}

// Close ends the turns that agents take, and the workers, and lets the folder go.
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

// room reports whether agents of somebody's may become larger. What has ended makes way, the
// oldest first. An agent becomes larger by some megabytes at the most until it is asked again.
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
	return fmt.Errorf("%w: those of one caller may have %d MiB, and all %d MiB", errRoom, s.ownBytes>>20, int64(maxBytes)>>20)
}
