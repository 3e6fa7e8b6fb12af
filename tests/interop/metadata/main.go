// Reads device metadata from standard input as a program in a container does, and prints the devices' names.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
)

func main() {
	var read metadata.DeviceMetadata
	if err := devicemetadata.DecodeMetadataFromStream(json.NewDecoder(os.Stdin), &read); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, request := range read.Requests {
		for _, device := range request.Devices {
			cpus := device.Attributes["dra.cpu/cpuset"]
			fmt.Println(read.UID, request.Name, device.Name, *cpus.StringValue)
		}
	}
}
