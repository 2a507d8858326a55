package grpctools

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// These are limits for the protobuf definitions that a server returns by reflection.
const (
	maxServices    = 256
	maxFiles       = 1024
	maxDescriptors = 1 << 20 // bytes
)

// reflectTime is the timeout for requesting a server's tools.
const reflectTime = 10 * time.Second

// toolsByReflection requests a server's tools by gRPC server reflection (grpc.reflection.v1).
func toolsByReflection(ctx context.Context, conn grpc.ClientConnInterface) (*set, error) {
	ctx, cancel := context.WithTimeout(ctx, reflectTime)
	defer cancel()
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the server for its contracts: %w", err)
	}
	r := &reflector{stream: stream, files: make(map[string]*descriptorpb.FileDescriptorProto)}
	names, err := r.services()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		err := r.fetch(&reflectionv1.ServerReflectionRequest{
			MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: name},
		})
		if err != nil {
			return nil, fmt.Errorf("ask for the contract of %s: %w", name, err)
		}
	}
	files, err := r.linked()
	if err != nil {
		return nil, err
	}
	tools := newSet()
	for _, name := range names {
		desc, err := files.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			return nil, fmt.Errorf("find the contract of %s: %w", name, err)
		}
		service, ok := desc.(protoreflect.ServiceDescriptor)
		if !ok {
			return nil, fmt.Errorf("%s is not a service", name)
		}
		if err := tools.add(service, nil); err != nil {
			return nil, err
		}
	}
	return tools, nil
}

type reflector struct {
	stream   grpc.BidiStreamingClient[reflectionv1.ServerReflectionRequest, reflectionv1.ServerReflectionResponse]
	files    map[string]*descriptorpb.FileDescriptorProto
	bytes    int
	requests int
}

func (r *reflector) roundTrip(req *reflectionv1.ServerReflectionRequest) (*reflectionv1.ServerReflectionResponse, error) {
	if r.requests++; r.requests > maxFiles+maxServices {
		return nil, fmt.Errorf("the server's contracts have more than %d files", maxFiles)
	}
	if err := r.stream.Send(req); err != nil {
		return nil, err
	}
	resp, err := r.stream.Recv()
	if err != nil {
		return nil, err
	}
	if said := resp.GetErrorResponse(); said != nil {
		return nil, fmt.Errorf("the server answered: %s", said.GetErrorMessage())
	}
	return resp, nil
}

func (r *reflector) services() ([]string, error) {
	resp, err := r.roundTrip(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
	if err != nil {
		return nil, fmt.Errorf("ask for the server's services: %w", err)
	}
	var names []string
	for _, service := range resp.GetListServicesResponse().GetService() {
		names = append(names, service.GetName())
	}
	if len(names) > maxServices {
		return nil, fmt.Errorf("the server has %d services; at most %d are allowed", len(names), maxServices)
	}
	return names, nil
}

func (r *reflector) fetch(req *reflectionv1.ServerReflectionRequest) error {
	resp, err := r.roundTrip(req)
	if err != nil {
		return err
	}
	var missing []string
	for _, text := range resp.GetFileDescriptorResponse().GetFileDescriptorProto() {
		if r.bytes += len(text); r.bytes > maxDescriptors {
			return fmt.Errorf("the server's contracts have more than %d bytes", maxDescriptors)
		}
		var file descriptorpb.FileDescriptorProto
		if err := proto.Unmarshal(text, &file); err != nil {
			return fmt.Errorf("read a contract: %w", err)
		}
		if r.files[file.GetName()] == nil {
			r.files[file.GetName()] = &file
			missing = append(missing, file.GetDependency()...)
		}
	}
	if len(r.files) > maxFiles {
		return fmt.Errorf("the server's contracts have more than %d files", maxFiles)
	}
	for _, name := range missing {
		if r.files[name] != nil || isOurs(name) {
			continue
		}
		err := r.fetch(&reflectionv1.ServerReflectionRequest{
			MessageRequest: &reflectionv1.ServerReflectionRequest_FileByFilename{FileByFilename: name},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func isOurs(name string) bool {
	_, err := protoregistry.GlobalFiles.FindFileByPath(name)
	return err == nil
}

// linked links the files. If this program contains a compiled version of a file, that version replaces the server's
// version, because this program reads the options with its own definitions.
func (r *reflector) linked() (*protoregistry.Files, error) {
	all := new(descriptorpb.FileDescriptorSet)
	done := make(map[string]bool)
	var add func(name string) error
	add = func(name string) error {
		if done[name] {
			return nil
		}
		done[name] = true
		file := r.files[name]
		if ours, err := protoregistry.GlobalFiles.FindFileByPath(name); err == nil {
			file = protodesc.ToFileDescriptorProto(ours)
		}
		if file == nil {
			return fmt.Errorf("the contract %s is missing", name)
		}
		for _, dependency := range file.GetDependency() {
			if err := add(dependency); err != nil {
				return err
			}
		}
		all.File = append(all.File, file)
		return nil
	}
	for name := range r.files {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	files, err := protodesc.NewFiles(all)
	if err != nil {
		return nil, errors.Join(errors.New("the server's contracts do not fit together"), err)
	}
	// Only files in this program may define packages with a special meaning.
	for name := range r.files {
		for _, reserved := range []string{"google.protobuf", "sluice", "buf.validate"} {
			if own := r.files[name].GetPackage(); !isOurs(name) && (own == reserved || strings.HasPrefix(own, reserved+".")) {
				return nil, fmt.Errorf("the contract %s declares the reserved package %s", name, own)
			}
		}
	}
	return files, nil
}

func linkedTools(contracts protoreflect.FullName) (*set, error) {
	tools := newSet()
	var err error
	protoregistry.GlobalFiles.RangeFilesByPackage(contracts, func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			if err = tools.add(file.Services().Get(i), protoregistry.GlobalTypes); err != nil {
				return false
			}
		}
		return true
	})
	if err == nil && len(tools.listed) == 0 {
		err = fmt.Errorf("%s has no tools", contracts)
	}
	return tools, err
}
