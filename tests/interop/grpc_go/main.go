// Command grpc_go asks a driver as kubelet does, by kubelet's own messages and gRPC's own library for Go.
//
// It is started by test_grpc_go.py with the driver's socket, prints a line for each check that holds, and ends with 1
// at the first that does not.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"
)

const patience = 60 * time.Second

func check(what string, holds bool, saw any) {
	if !holds {
		fmt.Printf("FAILED %s: %v\n", what, saw)
		os.Exit(1)
	}
	fmt.Println(what)
}

func dial(socket string, options ...grpc.DialOption) *grpc.ClientConn {
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	connection, err := grpc.NewClient("unix:"+socket, options...)
	check("dialled", err == nil, err)
	return connection
}

func prepare(connection *grpc.ClientConn, wait time.Duration, names ...string) (*dra.NodePrepareResourcesResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	request := &dra.NodePrepareResourcesRequest{}
	for _, name := range names {
		request.Claims = append(request.Claims, &dra.Claim{Namespace: "default", Name: name, Uid: "uid-" + name})
	}
	return dra.NewDRAPluginClient(connection).NodePrepareResources(ctx, request)
}

func concurrent(connection *grpc.ClientConn) {
	var group sync.WaitGroup
	wrong := make(chan any, 2000)
	for call := range 2000 {
		group.Go(func() {
			name := fmt.Sprintf("claim-%d", call)
			answer, err := prepare(connection, patience, name)
			if err != nil || answer.Claims["uid-"+name].GetDevices()[0].DeviceName != name {
				wrong <- fmt.Sprint(name, answer, err)
			}
		})
	}
	group.Wait()
	check("2,000 calls at once", len(wrong) == 0, len(wrong))
}

func large(connection *grpc.ClientConn) {
	name := "large-" + strings.Repeat("x", 3<<19)
	answer, err := prepare(connection, patience, name)
	check("3 MiB there and back", err == nil && answer.Claims["uid-"+name].GetDevices()[0].DeviceName == name, err)
	_, err = prepare(connection, patience, strings.Repeat("x", 3<<20))
	check("6 MiB refused", status.Code(err) == codes.ResourceExhausted, err)
}

func givenUp(connection *grpc.ClientConn) {
	_, err := prepare(connection, 50*time.Millisecond, "slow")
	check("a deadline", status.Code(err) == codes.DeadlineExceeded, err)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancel)
	claims := []*dra.Claim{{Namespace: "default", Name: "slow", Uid: "uid-slow"}}
	_, err = dra.NewDRAPluginClient(connection).NodePrepareResources(ctx, &dra.NodePrepareResourcesRequest{Claims: claims})
	check("a call that is taken back", status.Code(err) == codes.Canceled, err)
	_, err = prepare(connection, patience, "claim")
	check("a call after those", err == nil, err)
}

func refused(connection *grpc.ClientConn) {
	_, err := prepare(connection, patience, "refused")
	check("a reason in UTF-8", status.Code(err) == codes.Unavailable && status.Convert(err).Message() == "100 % für 水\n\"", err)
	err = connection.Invoke(context.Background(), "/v1.Nothing/AtAll", &dra.Claim{}, &dra.Claim{})
	check("an unknown method", status.Code(err) == codes.Unimplemented, err)
}

func watched(connection *grpc.ClientConn) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := health.NewDRAResourceHealthClient(connection).NodeWatchResources(ctx, &health.NodeWatchResourcesRequest{})
	check("a health stream", err == nil, err)
	for _, expected := range []health.HealthStatus{health.HealthStatus_HEALTHY, health.HealthStatus_UNHEALTHY} {
		said, err := stream.Recv()
		check("health said", err == nil && said.Devices[0].Health == expected, err)
		_, err = prepare(connection, patience, "unhealthy")
		check("a call beside it", err == nil, err)
	}
}

// kept is how a connection fares on which nothing happens but gRPC's pings; 10 s is the least that its library allows.
func kept(socket string) {
	parameters := keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}
	connection := dial(socket, grpc.WithKeepaliveParams(parameters))
	defer connection.Close()
	_, err := prepare(connection, patience, "claim")
	check("a call before pings", err == nil, err)
	ctx, cancel := context.WithTimeout(context.Background(), 17*time.Second)
	defer cancel()
	check("pings answered", !connection.WaitForStateChange(ctx, connectivity.Ready), connection.GetState())
}

func ended(connection *grpc.ClientConn) {
	var group sync.WaitGroup
	group.Go(func() {
		answer, err := prepare(connection, patience, "stop")
		check("the answer to a call before the end", err == nil && len(answer.Claims) == 1, err)
	})
	group.Wait()
	_, err := prepare(connection, patience, "claim")
	check("a call after the end", status.Code(err) == codes.Unavailable, err)
}

func main() {
	connection := dial(os.Args[1])
	defer connection.Close()
	concurrent(connection)
	large(connection)
	givenUp(connection)
	refused(connection)
	watched(connection)
	kept(os.Args[1])
	ended(connection)
}
