// Command notes is a gRPC server whose methods are MCP tools of the mesh. Any gRPC service can become an MCP server in
// this way if its methods have the option sluice.mcp.v1.tool and the server supports gRPC reflection.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	notesv1 "github.com/sluice-mesh/sluice/examples/notes/gen/notes/v1"
	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:50051", "the address to serve gRPC on")
	flag.Parse()
	if err := run(*addr); err != nil {
		fmt.Fprintln(os.Stderr, "notes:", err)
		os.Exit(1)
	}
}

func run(addr string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	server := grpc.NewServer()
	notesv1.RegisterNotesServiceServer(server, new(notes))
	reflection.Register(server) // the mesh finds the tools by reflection
	context.AfterFunc(ctx, server.GracefulStop)
	fmt.Println("serves gRPC at", lis.Addr())
	if err := server.Serve(lis); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

type notes struct {
	notesv1.UnimplementedNotesServiceServer

	mu    sync.Mutex
	last  int32
	notes []*notesv1.Note
}

// AddNote implements notesv1.NotesServiceServer.
func (n *notes) AddNote(_ context.Context, req *notesv1.AddNoteRequest) (*notesv1.AddNoteResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	note := &notesv1.Note{Id: n.last, Text: req.GetText(), Urgency: req.GetUrgency()}
	n.notes = append(n.notes, note)
	return &notesv1.AddNoteResponse{Note: note}, nil
}

// SearchNotes implements notesv1.NotesServiceServer.
func (n *notes) SearchNotes(req *notesv1.SearchNotesRequest, stream grpc.ServerStreamingServer[notesv1.SearchNotesResponse]) error {
	n.mu.Lock()
	all := append([]*notesv1.Note(nil), n.notes...)
	n.mu.Unlock()
	found := new(notesv1.SearchNotesResponse)
	for i, note := range all {
		if strings.Contains(note.GetText(), req.GetQuery()) {
			found.Notes = append(found.Notes, note)
		}
		progress := &mcpv1.Progress{Progress: float64(i + 1), Total: float64(len(all))}
		if err := stream.Send(&notesv1.SearchNotesResponse{Progress: progress}); err != nil {
			return err
		}
	}
	return stream.Send(found)
}

// DeleteNote implements notesv1.NotesServiceServer.
func (n *notes) DeleteNote(_ context.Context, req *notesv1.DeleteNoteRequest) (*notesv1.DeleteNoteResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, note := range n.notes {
		if note.GetId() == req.GetId() {
			n.notes = append(n.notes[:i], n.notes[i+1:]...)
			return new(notesv1.DeleteNoteResponse), nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "there is no note %d", req.GetId())
}

// CountNotes implements notesv1.NotesServiceServer.
func (n *notes) CountNotes(context.Context, *notesv1.CountNotesRequest) (*notesv1.CountNotesResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return &notesv1.CountNotesResponse{Count: int32(len(n.notes))}, nil
}
